"""Streams of a domain: verdicts, signatures and blocks are computed again, and what is wrong in one log is named."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.app.sequencer.judged_order import domain_settings, feed, judged, records_of, require_one_order
from tests.conftest import topics_on
from tests.faults.altering import recreate
from tests.service import Raw, Service, in_own_loop, send
from tokenmill.app.cli.verify import _domain_lines
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.control_log import skip_record
from tokenmill.app.kafka.control_topic import write_control
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.duplicates.signatures import sign
from tokenmill.app.sequencer.domain_messages import (
    JudgedRange,
    Remembered,
    SignedRange,
    VerdictEnd,
    deduplication_in,
    domain_fingerprint,
)
from tokenmill.app.settings import Domain, Settings
from tokenmill.app.tools.verify import VerifyResult, verify
from tokenmill.documents import SourceRecord
from tokenmill.wire.chain import record_crc


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


def bare(settings: Settings) -> Settings:
    """Return settings that know nothing of duplicates."""
    return Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics[:1])


def verified(settings: Settings) -> VerifyResult:
    """Verify the streams of the first topic."""
    return verify(bare(settings), store=settings.store, processes=1)


@contextmanager
def rewritten(
    settings: Settings, topic: str, partitions: int, change: Callable[[Sequence[SourceRecord]], Sequence[bytes | None]]
) -> Iterator[None]:
    """Have other values in the first partition of a topic, for the time of the block."""
    held = [records_of(settings, topic, number) for number in range(partitions)]

    async def write(values: Sequence[bytes | None]) -> None:
        async with producer(settings) as client:
            for number, records in enumerate(held):
                for at, value in enumerate([record.value for record in records] if number else values):
                    time = records[min(at, len(records) - 1)].timestamp  # of raw records, it is in cursors
                    await client.send_and_wait(topic, value, partition=number, timestamp_ms=time)

    recreate(settings, topic, partitions)
    in_own_loop(partial(write, change(held[0])))
    yield
    recreate(settings, topic, partitions)
    in_own_loop(partial(write, [record.value for record in held[0]]))


def unpacked(domain: Domain, value: bytes | None) -> SignedRange:
    """Return a message of the signature log."""
    width = deduplication_in(domain).width
    return SignedRange.unpack(value, domain_fingerprint(domain), width, len(domain.raw_topics))


def test_all_is_judged_again(served: Settings) -> None:
    """Both raw topics' documents, whichever of them is verified; and nobody says what the domain is."""
    (domain,) = served.domains()
    result = verified(served)
    assert result.differences == []
    assert all(chain.complete for chain in result.chains)
    (found,) = result.domains
    assert found.domain == domain.name
    reasons = [one.reason for verdicts in judged(served, domain).values() for one in verdicts.values()]
    assert found.duplicates == {reason: reasons.count(reason) for reason in reasons}
    assert found.documents == 2 * 120
    assert found.ranges == sum(
        len(records_of(served, domain.verdicts_topic(topic), number))
        for topic in domain.raw_topics
        for number in (0, 1)
    )
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

    with rewritten(served, domain.verdicts_topic(domain.raw_topics[0]), 2, change):
        result = verified(served)
    (found,) = result.domains[0].differences
    assert (found.side, found.stream, found.partition, found.offset) == (
        "verdicts",
        domain.raw_topics[0],
        0,
        flipped[0],
    )
    assert "the verdict is kept, and" in found.text
    assert "by the message at offset" in found.text
    assert {one.side for one in result.differences} == {"verdicts", "topic", "store"}


@pytest.mark.needs("minutes")
def test_verdicts_that_were_added_are_named(served: Settings) -> None:
    """One says otherwise what is known, one is of no signature message."""
    (domain,) = served.domains()
    fingerprint = domain_fingerprint(domain)

    def other(records: Sequence[SourceRecord]) -> list[bytes | None]:
        last = JudgedRange.unpack(records[-1].value, fingerprint, records[-1].offset, 2)
        return [*(record.value for record in records), replace(last, signature=10**6).pack(fingerprint, len(records))]

    def more(records: Sequence[SourceRecord]) -> list[bytes | None]:
        last = JudgedRange.unpack(records[-1].value, fingerprint, records[-1].offset, 2)
        end = last.after
        added = replace(last, begin=end.next_offset, end=end.next_offset + 9, before=end.chain, signature=10**6)
        return [*(record.value for record in records), added.pack(fingerprint, len(records))]

    for change, text in ((other, "two histories"), (more, "which has lost it")):
        with rewritten(served, domain.verdicts_topic(domain.raw_topics[0]), 2, change):
            result = verified(served)
        assert [(one.side, one.partition) for one in result.differences] == [("verdicts", 0)]
        assert text in result.differences[0].text


@pytest.mark.needs("minutes")
def test_a_signature_that_was_rewritten_is_named(served: Settings) -> None:
    """With the message's offset and the document's; the order gives another verdict, or the same."""
    (domain,) = served.domains()
    rewrote = list[tuple[int, int]]()

    def change(records: Sequence[SourceRecord]) -> list[bytes | None]:
        values = [record.value for record in records]
        for at, value in enumerate(values):
            one = unpacked(domain, value)
            if one.source == (0, 0) and not rewrote:
                rewrote.append((at, int(one.offsets[-1])))
                hashes = np.concatenate([one.hashes[:-1], one.hashes[-1:] + np.uint64(1)])
                values[at] = replace(one, hashes=hashes).pack(domain_fingerprint(domain))
        return values

    with rewritten(served, domain.signatures_topic, 1, change):
        result = verified(served)
    ((message, offset),) = rewrote
    (found,) = [one for one in result.differences if one.side == "signatures"]
    assert (found.stream, found.partition, found.offset) == (domain.raw_topics[0], 0, offset)
    assert f"the message at offset {message} of {domain.signatures_topic} has another signature of it" == found.text


@pytest.mark.needs("minutes")
def test_a_text_that_was_changed_is_named(served: Settings) -> None:
    """By the CRC of the last one of a range, and by the signature of any."""
    (domain,) = served.domains()
    remembered = next(
        one.remembered.offset
        for record in records_of(served, domain.signatures_topic)
        if (one := unpacked(domain, record.value)).source == (0, 0)
    )

    def change(records: Sequence[SourceRecord]) -> list[bytes | None]:
        return [b"another text" if record.offset == remembered else record.value for record in records]

    with rewritten(served, domain.raw_topics[0], 2, change):
        result = verified(served)
    places = {(one.side, one.offset) for one in result.differences}
    assert {("verdicts", remembered), ("signatures", remembered)} <= places


@pytest.mark.needs("minutes")
def test_what_is_not_judged_yet_is_verified_up_to_there(served: Settings) -> None:
    """What the steps filter out needs no verdict; and a verdict log that ends before blocks do is wrong."""
    (domain,) = served.domains()
    raw_topic, verdicts = domain.raw_topics[0], domain.verdicts_topic(domain.raw_topics[0])
    held = records_of(served, raw_topic)
    more = [b" ", b"a text that nobody has signed", b" "]
    with rewritten(served, raw_topic, 2, lambda records: [*(record.value for record in records), *more]):
        result = verified(served)
        (chain,) = [one for one in result.chains if one.partition == 0]
        assert result.differences == []
        assert (chain.raw_range, chain.unjudged) == ((0, len(held) + 1), 2)
        assert chain.totals.filtered["empty"] == 1
        assert any(f"has no verdict yet on the document at offset {len(held) + 1}" in note for note in result.notes)
        assert not chain.complete
        assert not result.complete
    with rewritten(served, verdicts, 2, lambda _: []):
        result = verified(served)
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
    assert chain.raw_range == (0, offset + 1)
    assert chain.totals.dead_lettered == {"skipped": 1}
