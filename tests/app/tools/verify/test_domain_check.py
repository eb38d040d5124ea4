"""Verdicts that are judged again: of whole logs, of what retention leaves, and of logs that say otherwise."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from aiokafka import TopicPartition

from tests.app.sequencer.judged_order import domain_settings, feed, judged, records_of, require_one_order
from tests.app.sequencer.test_rebuilding import plainly, signed_log
from tests.app.tools.verify.conftest import delete_before
from tests.conftest import TopicFactory, topics_on
from tests.faults.altering import recreate
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.cli.verify import _domain_lines
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.control_log import skip_record
from tokenmill.app.kafka.control_topic import write_control
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.duplicates.signatures import SLICES, sign
from tokenmill.app.sequencer.domain_messages import (
    SLICE_KEY,
    JudgedRange,
    Remembered,
    SignedRange,
    SliceStart,
    Source,
    VerdictEnd,
    deduplication_in,
    domain_fingerprint,
)
from tokenmill.app.sequencer.rebuilding import BEGINNING, DomainOrder
from tokenmill.app.sequencer.verdict_log import settle_domain
from tokenmill.app.settings import Domain, Settings
from tokenmill.app.tools.verify import VerifyResult, verify
from tokenmill.app.tools.verify.domain_check import DomainCheck
from tokenmill.documents import SourceRecord
from tokenmill.wire.chain import record_crc

Verdicts = dict[Source, list[JudgedRange]]
LOG = signed_log(11)


class Written(NamedTuple):
    settings: Settings
    domain: Domain
    verdicts: Verdicts
    slices: list[SliceStart]

    def check(self) -> DomainCheck:
        check = DomainCheck(self.settings, self.domain)
        in_own_loop(check.run)
        return check

    def log(self, source: Source) -> TopicPartition:
        return TopicPartition(self.domain.verdicts_topic(self.domain.raw_topics[source[0]]), source[1])


Write = Callable[..., Written]
Change = Callable[[Verdicts, list[SliceStart]], object]


def write_domain(
    broker: Broker, topic: TopicFactory, directory: Path, change: Change = lambda *_: None, *, signed: int = len(LOG)
) -> Written:
    first = topic(2)
    dedup = {"name": "exact", "window": 5 * SLICES, "domain": f"domain-of-{first}"}
    settings = service_settings(broker, first, directory, raw_topics=(first, topic(2)), dedup=dedup)
    (domain,) = settings.domains()
    in_own_loop(lambda: settle_domain(settings, domain))
    fingerprint, order = domain_fingerprint(domain), DomainOrder(deduplication_in(domain), BEGINNING)
    verdicts, slices = defaultdict(list), list[SliceStart]()
    for at, one in enumerate(LOG):
        if (part := order.accept(one)) is not None:
            verdicts[part.source].append(order.judge(part, at))
    slices += order.started
    change(verdicts, slices)
    send(settings, [Raw(one.pack(fingerprint)) for one in LOG[:signed]], domain.signatures_topic)
    send(settings, [Raw(one.pack(fingerprint), key=SLICE_KEY) for one in slices], domain.slices_topic)
    written = Written(settings, domain, verdicts, slices)
    for source, found in verdicts.items():
        log = written.log(source)
        packed = [Raw(one.pack(fingerprint, at), log.partition) for at, one in enumerate(found)]
        send(settings, packed, log.topic)
    return written


@pytest.fixture
def write(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Write:
    return partial(write_domain, broker, topic, tmp_path)


def test_all_that_was_judged_is_judged_again(write: Write) -> None:
    """What came twice or behind a hole is passed over, as by a sequencer; without a window nothing is judged."""
    written = write()
    check = written.check()
    assert (check.result.differences, check.result.notes) == ([], [])
    plain = plainly(LOG)
    assert check.result.documents == len(plain)
    assert check.result.duplicates == Counter(duplicate_exact=sum(found is not None for found in plain.values()))
    assert check.result.ranges == sum(map(len, written.verdicts.values()))

    delete_before(written.settings, TopicPartition(written.domain.signatures_topic, 0), len(LOG) - 1)
    check = written.check()
    assert (check.result.differences, check.result.ranges) == ([], 0)
    assert "no longer hold what a whole window needs" in check.result.notes[0]


@pytest.mark.cases(1)
@pytest.mark.parametrize("also_verdicts", [False, True])
def test_behind_retention_verdicts_are_judged_again_from_a_whole_window(write: Write, *, also_verdicts: bool) -> None:
    def flip(verdicts: Verdicts, _: object) -> None:
        last = verdicts[0, 0][-1]
        verdicts[0, 0][-1] = replace(last, kinds=last.kinds + 1)

    for change in (None, flip):
        written = write(change) if change is not None else write()
        base, whole = written.slices[2], written.slices[2 + SLICES].signature
        assert 0 < base.signature < whole
        delete_before(written.settings, TopicPartition(written.domain.signatures_topic, 0), base.signature)
        known = {source: base.verdict_ends[source].next_offset for source in written.verdicts}
        gone = {
            source: sum(one.end <= known[source] for one in found) - 1 for source, found in written.verdicts.items()
        }
        for source, count in gone.items() if also_verdicts else ():
            delete_before(written.settings, written.log(source), count)
        check = written.check()
        wanted = [one for found in written.verdicts.values() for one in found if one.signature >= whole]
        assert 0 < len(wanted) < sum(map(len, written.verdicts.values())) - 5
        assert check.result.ranges == len(wanted)
        assert f"from offset {whole} on" in check.result.notes[0]
        begins = {source: check.logs[source].begin.next_offset for source in known}
        assert max(gone.values()) > 0
        assert begins == {source: known[source] if also_verdicts and gone[source] else 0 for source in known}
        assert [(one.side, one.partition) for one in check.result.differences] == ([("verdicts", 0)] if change else [])


def test_a_signature_log_that_lost_its_end_is_named(write: Write) -> None:
    written = write(signed=len(LOG) - 9)
    check = written.check()
    lost = {
        source[1]: min(one.begin for one in found if one.signature >= len(LOG) - 9)
        for source, found in written.verdicts.items()
        if source[0] == 0 and found[-1].signature >= len(LOG) - 9
    }
    first = [one for one in check.result.differences if one.stream == written.domain.raw_topics[0]]
    assert {one.partition: one.offset for one in first} == lost
    assert all("has lost it" in one.text for one in first)


def test_a_slice_that_begins_elsewhere_is_named(write: Write) -> None:
    """A sequencer would begin there."""

    def change(_: object, slices: list[SliceStart]) -> None:
        slices[3] = replace(slices[3], kept=slices[3].kept + 1)

    (found,) = write(change).check().result.differences
    assert "says of slice 4 that it begins elsewhere" in found.text


@pytest.fixture(scope="module")
def served(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return the settings of a service that has judged, milled and stored all of two topics, and has ended."""
    folder = tmp_path_factory.mktemp("served")
    settings = domain_settings(broker, topics_on(broker, "verified-duplicates"), folder, splits={"all": 1000})
    feed(settings, random.Random("verify"), 120)
    with Service(settings, folder) as service:
        service.mill()
        service.sequencer()
        service.segment()
        require_one_order(service)
        service.stop()
    return settings


def verified(settings: Settings) -> VerifyResult:
    """Verify the streams of the first topic, with settings that know nothing of duplicates."""
    bare = Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics[:1])
    return verify(bare, store=settings.store, processes=1)


def values_of(records: Sequence[SourceRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def verified_with(
    settings: Settings, topic: str, partitions: int, change: Callable[[Sequence[SourceRecord]], Sequence[bytes | None]]
) -> VerifyResult:
    """Verify while the first partition of a topic has other values."""
    held = [records_of(settings, topic, number) for number in range(partitions)]

    async def write(values: Sequence[bytes | None]) -> None:
        async with producer(settings) as client:
            for number, records in enumerate(held):
                for at, value in enumerate(values_of(records) if number else values):
                    time = records[min(at, len(records) - 1)].timestamp  # of raw records, it is in cursors
                    await client.send_and_wait(topic, value, partition=number, timestamp_ms=time)

    recreate(settings, topic, partitions)
    in_own_loop(partial(write, change(held[0])))
    result = verified(settings)
    recreate(settings, topic, partitions)
    in_own_loop(partial(write, values_of(held[0])))
    return result


def unpacked(domain: Domain, value: bytes | None) -> SignedRange:
    width = deduplication_in(domain).width
    return SignedRange.unpack(value, domain_fingerprint(domain), width, len(domain.raw_topics))


def test_all_is_judged_again(served: Settings) -> None:
    (domain,) = served.domains()
    result = verified(served)
    assert result.differences == []
    assert all(chain.complete for chain in result.chains)
    (found,) = result.domains
    assert found.domain == domain.name
    reasons = [one.reason for verdicts in judged(served, domain).values() for one in verdicts.values()]
    assert found.duplicates == {reason: reasons.count(reason) for reason in reasons}
    assert found.documents == 2 * 120
    logs = [(domain.verdicts_topic(topic), number) for topic in domain.raw_topics for number in (0, 1)]
    assert found.ranges == sum(len(records_of(served, *log)) for log in logs)
    assert result.to_dict()["domains"][0]["duplicates"] == dict(found.duplicates)
    (line,) = _domain_lines(result)
    assert line.startswith(f"duplicates in {domain.name}: 240 documents judged again, ")


@pytest.mark.needs("minutes")
def test_a_verdict_that_was_flipped_is_named(served: Settings) -> None:
    """In a log that continues itself as if it had always been so; the blocks are not those of such verdicts, either."""
    (domain,) = served.domains()
    fingerprint, flipped = domain_fingerprint(domain), list[int]()

    def change(records: Sequence[SourceRecord]) -> list[bytes]:
        end, values = VerdictEnd(), list[bytes]()
        for record in records:
            one = replace(JudgedRange.unpack(record.value, fingerprint, record.offset, 2), before=end.chain)
            if len(one.offsets) and not flipped:
                flipped.append(int(one.offsets[0]))
                one = replace(one, offsets=one.offsets[1:], kinds=one.kinds[1:], places=one.places[1:])
            end = one.after
            values.append(one.pack(fingerprint, len(values)))
        return values

    result = verified_with(served, domain.verdicts_topic(domain.raw_topics[0]), 2, change)
    (found,) = result.domains[0].differences
    assert (found.side, found.stream, found.partition) == ("verdicts", domain.raw_topics[0], 0)
    assert found.offset == flipped[0]
    assert "the verdict is kept, and" in found.text
    assert "by the message at offset" in found.text
    assert {one.side for one in result.differences} == {"verdicts", "topic", "store"}


@pytest.mark.needs("minutes")
def test_verdicts_that_were_added_are_named(served: Settings) -> None:
    (domain,) = served.domains()
    fingerprint = domain_fingerprint(domain)

    def other(records: Sequence[SourceRecord]) -> list[bytes | None]:
        last = JudgedRange.unpack(records[-1].value, fingerprint, records[-1].offset, 2)
        return [*values_of(records), replace(last, signature=10**6).pack(fingerprint, len(records))]

    def more(records: Sequence[SourceRecord]) -> list[bytes | None]:
        last = JudgedRange.unpack(records[-1].value, fingerprint, records[-1].offset, 2)
        end = last.after
        added = replace(last, begin=end.next_offset, end=end.next_offset + 9, before=end.chain, signature=10**6)
        return [*values_of(records), added.pack(fingerprint, len(records))]

    for change, text in ((other, "two histories"), (more, "which has lost it")):
        result = verified_with(served, domain.verdicts_topic(domain.raw_topics[0]), 2, change)
        assert [(one.side, one.partition) for one in result.differences] == [("verdicts", 0)]
        assert text in result.differences[0].text


@pytest.mark.needs("minutes")
def test_a_signature_that_was_rewritten_is_named(served: Settings) -> None:
    (domain,) = served.domains()
    rewrote = list[tuple[int, int]]()

    def change(records: Sequence[SourceRecord]) -> list[bytes | None]:
        values = values_of(records)
        for at, value in enumerate(values):
            one = unpacked(domain, value)
            if one.source == (0, 0) and not rewrote:
                rewrote.append((at, int(one.offsets[-1])))
                hashes = np.concatenate([one.hashes[:-1], one.hashes[-1:] + np.uint64(1)])
                values[at] = replace(one, hashes=hashes).pack(domain_fingerprint(domain))
        return values

    result = verified_with(served, domain.signatures_topic, 1, change)
    ((message, offset),) = rewrote
    (found,) = [one for one in result.differences if one.side == "signatures"]
    assert (found.stream, found.partition, found.offset) == (domain.raw_topics[0], 0, offset)
    assert f"the message at offset {message} of {domain.signatures_topic} has another signature of it" == found.text


@pytest.mark.needs("minutes")
def test_a_text_that_was_changed_is_named(served: Settings) -> None:
    (domain,) = served.domains()
    remembered = next(
        one.remembered.offset
        for record in records_of(served, domain.signatures_topic)
        if (one := unpacked(domain, record.value)).source == (0, 0)
    )

    def change(records: Sequence[SourceRecord]) -> list[bytes | None]:
        return [b"another text" if record.offset == remembered else record.value for record in records]

    result = verified_with(served, domain.raw_topics[0], 2, change)
    places = {(one.side, one.offset) for one in result.differences}
    assert {("verdicts", remembered), ("signatures", remembered)} <= places


@pytest.mark.needs("minutes")
def test_what_is_not_judged_yet_is_verified_up_to_there(served: Settings) -> None:
    (domain,) = served.domains()
    raw_topic, more = domain.raw_topics[0], [b" ", b"a text that nobody has signed", b" "]
    count = len(records_of(served, raw_topic))
    result = verified_with(served, raw_topic, 2, lambda records: [*values_of(records), *more])
    (chain,) = [one for one in result.chains if one.partition == 0]
    assert result.differences == []
    assert (chain.raw_range, chain.unjudged) == ((0, count + 1), 2)
    assert chain.totals.filtered["empty"] == 1
    assert any(f"has no verdict yet on the document at offset {count + 1}" in note for note in result.notes)
    assert (chain.complete, result.complete) == (False, False)
    result = verified_with(served, domain.verdicts_topic(raw_topic), 2, lambda _: [])
    assert {(one.side, one.partition) for one in result.differences} == {("topic", 0), ("store", 0)}
    assert all(one.complete for one in verified(served).chains)


def test_what_was_signed_and_then_skipped_is_right(served: Settings) -> None:
    """The order has a document there, which the stream has not."""
    (domain,) = served.domains()
    raw_topic, fingerprint = domain.raw_topics[0], domain_fingerprint(domain)
    found = records_of(served, domain.verdicts_topic(raw_topic))
    last = JudgedRange.unpack(found[-1].value, fingerprint, found[-1].offset, 2)
    offset, text = last.end, b"a text that ends its worker"
    remembered = Remembered(offset, record_crc(None, text))
    hashes = sign(deduplication_in(domain), [text.decode()])
    signed = SignedRange((0, 0), offset, offset + 1, remembered, np.array([offset]), hashes)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 2), np.uint64)
    number = len(records_of(served, domain.signatures_topic))
    out = JudgedRange(offset, offset + 1, remembered, number, *nothing, last.after.chain)
    send(served, [Raw(signed.pack(fingerprint))], domain.signatures_topic)
    send(served, [Raw(out.pack(fingerprint, len(found)))], domain.verdicts_topic(raw_topic))
    send(served, [Raw(text)], raw_topic)
    (stream,) = [one for one in served.streams() if one.raw_topic == raw_topic]
    in_own_loop(lambda: write_control(served, stream.control_topic, [skip_record(0, offset)]))
    result = verified(served)
    assert result.differences == []
    (chain,) = [one for one in result.chains if one.partition == 0]
    assert (chain.raw_range, chain.totals.dead_lettered) == ((0, offset + 1), {"skipped": 1})
