"""Documents that steps filtered out, read again from the raw topic, with the numbers that decided."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import Document, SourceRecord
from tokenmill.errors import InputError, TopicError

from ...kafka.clients import consumer, offsets, read_batches
from ...kafka.control_topic import Settled, require_topic, settled_streams
from ...kafka.dead_letters import RecordPlace
from ...kafka.token_topic import published_head
from ...milling.columns import OutcomeColumns, RecordColumns
from ...milling.outcomes import NO_TOKENS, NO_TOKENS_DETAIL, Kind, Stages
from ...sequencer.verdict_log import settled_domain
from ...settings import Domain, Settings
from ..kafka_reading import stream_stages
from .duplicates import Duplicates


class RejectedDocument(NamedTuple):
    """A document that a stream left out."""

    stream: str
    place: RecordPlace
    timestamp: int
    reason: str
    detail: str
    document: Document
    """As it came to the step that filtered it out."""


async def read_rejected(
    settings: Settings,
    streams: Sequence[str] = (),
    *,
    reasons: Collection[str] = (),
    limit: int,
    progress: Callable[[int, int], None] = lambda _records, _bytes: None,
) -> AsyncGenerator[RejectedDocument, None]:
    """Yield what ``streams`` filtered out, at most ``limit`` documents of a reason, in the order of the raw topic.

    Without names: all streams of the settings' raw topics; without ``reasons``: all that their totals count. Partitions
    are read from their beginnings, up to what the stream has published, until there is enough of each reason.
    ``progress`` is called with the records and bytes that were read. Raises InputError where no stream counts anything
    under one of the ``reasons``; TopicError where a stream is unknown; and FingerprintError where libraries here
    differ.
    """
    found = await settled_streams(settings, streams)
    async with consumer(settings) as client, consumer(settings) as verdicts:
        ends = {one.stream.name: await _ends(client, one) for one in found}
        counted = {name: sum((count for _, count in parts.values()), Counter[str]()) for name, parts in ends.items()}
        every = require_counted(reasons, sum(counted.values(), Counter[str]()))
        for settled in found:
            counts = counted[settled.stream.name]
            wanted = Counter({reason: min(limit, counts[reason]) for reason in reasons or every})
            stages = stream_stages(settings, settled, settings.engine)
            domain: Domain | None = None
            with suppress(TopicError):  # nothing was judged
                domain = await settled_domain(settings, settled) if settled.genesis.recipe.dedup else None
            search = _Search(stages, client, verdicts, settled, domain, wanted, progress)
            for partition, (end, _) in ends[settled.stream.name].items():
                async with aclosing(search.partition(partition, end)) as documents:
                    async for document in documents:
                        yield document


def require_counted(reasons: Collection[str], counted: Counter[str]) -> list[str]:
    """Return all reasons that are counted. Raises `InputError` where one of ``reasons`` is not."""
    every = sorted(+counted)
    for reason in sorted(set(reasons) - set(every)):
        raise InputError(f"nothing is filtered out for {reason!r}; reasons here: {', '.join(every) or 'none'}")
    return every


async def _ends(client: AIOKafkaConsumer, settled: Settled) -> dict[int, tuple[int, Counter[str]]]:
    ends = {}
    for partition in range(await require_topic(client, settled.stream.tokens_topic)):
        tokens = TopicPartition(settled.stream.tokens_topic, partition)
        head = await published_head(client, tokens, settled)
        if head is not None:
            ends[partition] = (head.cursor.next_offset, head.totals.filtered)
    return ends


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for documents that one stream filtered out, partition after partition."""

    _stages: Stages
    _client: AIOKafkaConsumer
    _verdicts: AIOKafkaConsumer
    _settled: Settled
    _domain: Domain | None
    _wanted: Counter[str]
    _progress: Callable[[int, int], None]

    async def partition(self, partition: int, end: int) -> AsyncGenerator[RejectedDocument, None]:
        """Yield what is wanted of the records below ``end``; what is found is wanted no more."""
        raw = TopicPartition(self._settled.stream.raw_topic, partition)
        first, stop = (await offsets(self._client, [raw]))[raw]
        start = max(first, self._settled.genesis.start(partition))
        if start >= min(end, stop) or not +self._wanted:
            return
        duplicates = None if self._domain is None else Duplicates(self._verdicts, self._domain, raw, start)
        async for records in read_batches(self._client, raw, start, min(end, stop)):
            if duplicates is not None:
                await duplicates.tell(self._stages.seen, records[-1].offset + 1)
            for found in self._among(raw, records):
                yield found
            self._progress(len(records), sum(len(record.value or b"") for record in records))
            if not +self._wanted:
                return

    def _among(self, raw: TopicPartition, records: Sequence[SourceRecord]) -> list[RejectedDocument]:
        skips = self._settled.control.skips.get(raw.partition, ())
        fetch = RecordColumns.of(records)
        found: list[RejectedDocument] = []
        for low, high in fetch.parts():
            part = fetch.part(low, high)
            columns = OutcomeColumns.sort(self._stages, part, skips)
            columns.filter_seen(self._stages)
            split = self._settled.stream.split
            filtered = [(o.record, o.reason) for o in columns.rejected if o.split == split]
            filtered += [(record, NO_TOKENS) for record in self._silent(columns, part.records)]
            for record, reason in sorted(filtered, key=lambda one: one[0].offset):
                if self._wanted[reason] > 0:
                    self._wanted[reason] -= 1
                    found.append(self._rejected(raw, record, reason))
        return found

    def _silent(self, columns: OutcomeColumns, records: Sequence[SourceRecord]) -> list[SourceRecord]:
        if self._wanted[NO_TOKENS] <= 0:
            return []
        kept = columns.kept[self._settled.stream.split]
        return [records[at] for at in kept.indices[self._stages.engine.encode(kept.documents.texts).silent].tolist()]

    def _rejected(self, raw: TopicPartition, record: SourceRecord, reason: str) -> RejectedDocument:
        """Ask the steps themselves, one after the other: they say which numbers decided."""
        passed: list[Document] = []
        outcome = self._stages.outcome(record, (), passed)
        detail = outcome.detail if outcome.kind is Kind.FILTERED else NO_TOKENS_DETAIL
        place = RecordPlace(raw.topic, raw.partition, record.offset)
        return RejectedDocument(self._settled.stream.name, place, record.timestamp, reason, detail, passed[-1])
