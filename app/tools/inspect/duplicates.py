"""What verdict logs say of documents: which were seen before, which came again, and how often."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.store.layout import blaming

from ...kafka.clients import consumer
from ...kafka.cluster import partitions_of
from ...kafka.dead_letters import RecordPlace
from ...milling.duplicates.signatures import PLACE, REASONS, Hashes
from ...milling.steps import Rejected
from ...sequencer.domain_messages import JudgedRange, source_number
from ...sequencer.verdict_log import VerdictLog, VerdictQueue, settled_domains
from ...settings import Domain, Settings
from ...sources.items import library
from ..export.formats import new_file


async def judged_ranges(
    client: AIOKafkaConsumer, domain: Domain, raw: TopicPartition, offset: int = 0
) -> AsyncIterator[JudgedRange]:
    """Yield verdicts that count, from those on an offset on; alone with ``client``. DifferenceError: two histories."""
    log = VerdictLog(domain, (domain.raw_topics.index(raw.topic), raw.partition))
    if raw.partition < await partitions_of(client, log.tp.topic):
        await log.open_at(client, offset)
        while (judged := await log.next(client)) is not None:
            yield judged


async def all_ranges(client: AIOKafkaConsumer, domain: Domain) -> AsyncIterator[tuple[TopicPartition, JudgedRange]]:
    """Yield all verdicts of a domain with the raw partition that they are on; raises as `judged_ranges`."""
    for raw_topic in domain.raw_topics:
        for partition in range(await partitions_of(client, domain.verdicts_topic(raw_topic))):
            raw = TopicPartition(raw_topic, partition)
            async for judged in judged_ranges(client, domain, raw):
                yield raw, judged


class Duplicates:
    """The duplicates of one raw partition from an offset on, for whoever reads its records."""

    def __init__(self, client: AIOKafkaConsumer, domain: Domain, raw: TopicPartition, start: int) -> None:
        self._ranges, self._queue = judged_ranges(client, domain, raw, start), VerdictQueue(domain)

    async def tell(self, seen: dict[int, Rejected], end: int) -> None:
        """Have in ``seen`` those before an offset that were not told yet, and nothing else."""
        while self._queue.end < end and (judged := await anext(self._ranges, None)) is not None:
            self._queue.add(judged)
        self._queue.tell(seen, end)

    def why_unjudged(self, offset: int) -> str:
        """Return why there is no verdict on an offset that `tell` has passed; nothing where there is one."""
        if offset >= self._queue.end:
            return "there is no verdict on duplicates yet"
        return "there is no verdict on duplicates any more" if offset < (self._queue.begin or 0) else ""


Copies: TypeAlias = list[tuple[RecordPlace, str]]
"""Documents that were left out, as they resemble a kept one: each place, and the reason."""


async def copies_of(settings: Settings, place: RecordPlace) -> Copies:
    """Return the documents that resemble the kept one at a place; all verdicts of its domains are read."""
    domains = await settled_domains(settings, [place.topic])
    async with consumer(settings) as client:
        return [copy for domain in domains for copy in await _copies(client, domain, place)]


async def _copies(client: AIOKafkaConsumer, domain: Domain, place: RecordPlace) -> Copies:
    kept = np.array([source_number((domain.raw_topics.index(place.topic), place.partition)), place.offset], np.uint64)
    return [
        (RecordPlace(raw.topic, raw.partition, int(judged.offsets[row])), REASONS[judged.kinds[row]])
        async for raw, judged in all_ranges(client, domain)
        for row in np.flatnonzero((judged.places == kept).all(axis=1))
    ]


async def seen_before(settings: Settings, place: RecordPlace) -> dict[str, dict[str, Any] | None]:
    """Return by domain, as JSON types, whether a record is a duplicate, or how often it came again; None: unjudged."""
    found: dict[str, dict[str, Any] | None] = {}
    seen: dict[int, Rejected] = {}
    async with consumer(settings) as client:
        for domain in await settled_domains(settings, [place.topic]):
            found[domain.name], raw = None, TopicPartition(place.topic, place.partition)
            duplicates = Duplicates(client, domain, raw, place.offset)
            await duplicates.tell(seen, place.offset + 1)
            verdict = seen.get(place.offset, Rejected("", ""))
            if not duplicates.why_unjudged(place.offset):
                copies = [] if verdict.reason else await _copies(client, domain, place)
                again = dict(Counter(reason for _, reason in copies))
                found[domain.name] = {"reason": verdict.reason, "detail": verdict.detail, "again": again}
    return found


PART: Final = 1 << 20
"""Duplicates that are taken before they are sorted; later on, as many as there are documents that came again."""


class TimesAgain:
    """How often each kept document came again.

    Takes 16 bytes for each document that came again, as much for duplicates not sorted yet (or for a million), and
    three times as much while it sorts: 0.6 GB for 10 million that came again once, in one partition.
    """

    def __init__(self) -> None:
        self._times: dict[int, tuple[Hashes, Hashes]] = {}
        """By source: the offsets of documents, ascending, and how often each one came again."""
        self._waiting = np.empty((0, PLACE), np.uint64)
        self._rows = 0

    def add(self, places: Hashes) -> None:
        """Take the places of the kept documents that duplicates resemble; shape ``[duplicates, 2]``."""
        if self._rows + len(places) > len(self._waiting):
            self._sort()
            known = sum(len(offsets) for offsets, _ in self._times.values())
            self._waiting = np.empty((max(PART, known, len(places)), PLACE), np.uint64)
        self._waiting[self._rows : self._rows + len(places)] = places
        self._rows += len(places)

    def _sort(self) -> None:
        places, self._rows = self._waiting[: self._rows], 0
        for source in np.unique(places[:, 0]).tolist():
            come = places[places[:, 0] == source, 1]
            known, times = self._times.pop(source, (come[:0], come[:0]))
            offsets = np.concatenate([known, come])
            order = np.argsort(offsets)
            offsets, times = offsets[order], np.concatenate([times, np.ones_like(come)])[order]
            firsts = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1]]))
            self._times[source] = offsets[firsts], np.add.reduceat(times, firsts)

    def rows(self) -> Iterator[tuple[int, Hashes, Hashes]]:
        """Yield the number of each source, the offsets of its documents, ascending, and how often each came again."""
        self._sort()
        for source, (offsets, times) in sorted(self._times.items()):
            yield source, offsets, times

    def histogram(self) -> list[int]:
        """Return how many documents came again once, twice, 3 to 4 times, 5 to 8 times, and so on."""
        self._sort()
        sizes = np.zeros(64, np.int64)
        for _, times in self._times.values():
            sizes += np.bincount(np.frexp(times - np.uint64(1))[1], minlength=len(sizes))
        found: list[int] = np.trim_zeros(sizes, "b").tolist()
        return found


AddTimes: TypeAlias = Callable[[Sequence[str], TimesAgain], None]


@contextmanager
def times_file(path: Path) -> Iterator[AddTimes]:
    """Write a Parquet file with a row for each document that came again: its place, as in an export, and how often."""
    arrow, parquet = (library(name, "export", "--to") for name in ("pyarrow", "pyarrow.parquet"))
    kinds = {"raw_topic": arrow.string(), "partition": arrow.int32(), "offset": arrow.int64(), "times": arrow.int64()}
    schema = arrow.schema(kinds.items())
    with blaming(path), new_file(path) as file, parquet.ParquetWriter(file, schema) as writer:

        def add(raw_topics: Sequence[str], again: TimesAgain) -> None:
            for source, offsets, times in again.rows():
                place = [raw_topics[source >> 32]] * len(times), [source & 0xFFFFFFFF] * len(times)
                columns = *place, offsets.view(np.int64), times.view(np.int64)
                writer.write_table(arrow.table(list(map(arrow.array, columns, kinds.values())), schema=schema))

        yield add


async def count_duplicates(settings: Settings, add: AddTimes | None) -> list[dict[str, Any]]:
    """Return, as JSON types, what was judged in each domain of the settings' raw topics; all verdicts are read.

    ``topics``: by raw topic, ``offsets judged``, and duplicates by their reason; ``again``: `TimesAgain.histogram`.
    What `times_file` yields gets each domain.
    """
    found = []
    async with consumer(settings) as client:
        for domain in await settled_domains(settings, settings.raw_topics):
            topics = {raw_topic: dict.fromkeys(("offsets judged", *REASONS[1:]), 0) for raw_topic in domain.raw_topics}
            again = TimesAgain()
            async for raw, judged in all_ranges(client, domain):
                topics[raw.topic]["offsets judged"] += judged.end - judged.begin
                for kind, number in enumerate(np.bincount(judged.kinds).tolist()):
                    if number:
                        topics[raw.topic][REASONS[kind]] += number
                again.add(judged.places)
            if add is not None:
                add(domain.raw_topics, again)
            found.append({"domain": domain.name, "topics": topics, "again": again.histogram()})
    return found
