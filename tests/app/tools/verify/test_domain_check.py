"""Verdicts that are judged again: of whole logs, of what retention leaves, and of logs that say otherwise."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import TopicPartition

from tests.app.sequencer.test_rebuilding import plainly, signed_log
from tests.app.tools.verify.published import delete_before
from tests.conftest import TopicFactory
from tests.service import Raw, in_own_loop, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.duplicates.signatures import SLICES
from tokenmill.app.sequencer.domain_messages import (
    SLICE_KEY,
    JudgedRange,
    SliceStart,
    Source,
    deduplication_in,
    domain_fingerprint,
)
from tokenmill.app.sequencer.rebuilding import BEGINNING, DomainOrder
from tokenmill.app.sequencer.verdict_log import settle_domain
from tokenmill.app.settings import Domain, Settings
from tokenmill.app.tools.verify.domain_check import DomainCheck

Verdicts = dict[Source, list[JudgedRange]]
LOG = signed_log(11)


class Written(NamedTuple):
    """A domain whose logs are on a broker."""

    settings: Settings
    domain: Domain
    verdicts: Verdicts
    slices: list[SliceStart]

    def check(self) -> DomainCheck:
        """Judge it again."""
        check = DomainCheck(self.settings, self.domain)
        in_own_loop(check.run)
        return check

    def log(self, source: Source) -> TopicPartition:
        """Return a log of verdicts."""
        return TopicPartition(self.domain.verdicts_topic(self.domain.raw_topics[source[0]]), source[1])


Write = Callable[..., Written]


def write_domain(
    broker: Broker,
    topic: TopicFactory,
    directory: Path,
    change: Callable[[Verdicts, list[SliceStart]], object] = lambda _, __: None,
    *,
    signed: int = len(LOG),
) -> Written:
    """Put all that a sequencer makes of `LOG` on a broker, with changes."""
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
    """Return `write_domain` for one test."""
    return partial(write_domain, broker, topic, tmp_path)


def test_all_that_was_judged_is_judged_again(write: Write) -> None:
    """What came twice or behind a hole is passed over, as by a sequencer."""
    written = write()
    check = written.check()
    assert (check.result.differences, check.result.notes) == ([], [])
    plain = plainly(LOG)
    assert check.result.documents == len(plain)
    assert check.result.duplicates == Counter(duplicate_exact=sum(found is not None for found in plain.values()))
    assert check.result.ranges == sum(map(len, written.verdicts.values()))


@pytest.mark.cases(1)
@pytest.mark.parametrize("also_verdicts", [False, True])
def test_behind_what_retention_has_removed_verdicts_are_judged_again_from_a_whole_window_on(
    write: Write, *, also_verdicts: bool
) -> None:
    """Partitions are verified from where their verdicts begin, or the window."""

    def flip(verdicts: Verdicts, _: object) -> None:
        last = verdicts[0, 0][-1]
        verdicts[0, 0][-1] = replace(last, kinds=last.kinds + 1)

    for change in (None, flip):
        written = write(change) if change is not None else write()
        base = written.slices[2]
        whole = written.slices[2 + SLICES].signature
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


def test_without_a_whole_window_verdicts_are_taken_as_they_are(write: Write) -> None:
    """And that is said."""
    written = write()
    delete_before(written.settings, TopicPartition(written.domain.signatures_topic, 0), len(LOG) - 1)
    check = written.check()
    assert check.result.differences == []
    assert check.result.ranges == 0
    assert "no longer hold what a whole window needs" in check.result.notes[0]


def test_a_signature_log_that_lost_its_end_is_named(write: Write) -> None:
    """By the first verdict of each partition of which it has no message."""
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
