"""A run of produce: documents from sources into a raw topic, acknowledged, in order, at a rate, and once.

A call sends a new run, the rest of an interrupted one, or what its sources got since. A run is sent in parts: first
everything that its sources hold, and then, each time that ``--only-new`` asks for it, what was added since. Each part
has an order of its own, and begins when all of the part before it is in the log; documents are numbered through all.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

import xxhash
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from tokenmill.documents import FLUSH_HEADER, MAX_TEXT_BYTES
from tokenmill.errors import BrokerError, InputError, SettingsError, SourceError, TopicError

from ...kafka.clients import producer, retry, sending_to
from ...kafka.control_topic import settled_streams
from ...kafka.dead_letters import LetterTopic
from ...kafka.topics import ensure_produced, partition_count
from ...settings import Settings, produced_topic
from ...sources import source_changes
from ...sources.items import DocumentSource, Placed, Refused
from ...sources.reading_order import OrderState, ReadingOrder, ShuffleBuffer
from ...sources.source_changes import ORDER, KnownSource, SourceChange, SourceComparison, changes_line, compare_sources
from . import run_notes, sending
from .run_notes import BatchMark, RunCheckpoint, RunEnd, RunPosition, RunStart, SentBefore
from .sending import Acknowledged, Progress, ReadingPlan, Refusals, Sender, SentDocument, Summary

ADVICE: Final = "--restart sends all documents again"


class _NextPart(NamedTuple):
    run_start: RunStart
    position: RunPosition
    sources: list[DocumentSource]
    more: bool  # whether there is something new to send after it
    left_out: list[SourceChange]  # how sources have changed that were sent, and are not sent again


@dataclass(frozen=True, slots=True)
class Resuming:
    """Finds the next part of a run of which this process is the only writer (`fenced_producer`)."""

    settings: Settings
    client: AIOKafkaProducer
    topic: str
    run: str
    sources: Sequence[DocumentSource]
    only_new: bool = False

    @property
    def _order(self) -> str:
        """How a part orders documents: the limit of texts decides which of them have a number."""
        limit = self.settings.for_topic(self.topic).limits.max_text_bytes
        return ORDER if limit == MAX_TEXT_BYTES else f"{ORDER} {limit}"

    async def next_part(self, partitions: int, *, restart: bool = False) -> _NextPart:
        """Return the part that is to be sent; on return a new one is noted on Kafka.

        Raises InputError where a source has changed, and SourceError where nothing says where the run continues.
        """
        run_start = None if restart else await run_notes.read_note(self.settings, self.topic, self.run)
        if run_start is None:
            if not restart:
                ends = await run_notes.partition_ends(self.settings, self.topic, partitions)
                if await run_notes.has_marks(self.settings, self.topic, ends, self.run):
                    raise SourceError(
                        f"{produced_topic(self.topic)} does not say when this run began, and {self.topic} holds "
                        f"documents of it: {ADVICE}"
                    )
            looks = await asyncio.to_thread(source_changes.look_at_sources, self.sources, whole_lines=self.only_new)
            return await self._begin(partitions, [one.seen for one in looks])
        if len(run_start.offsets) > partitions:
            raise SourceError(f"{self.topic} was created again, with fewer partitions, since this run began: {ADVICE}")
        if run_start.order != self._order:
            raise InputError(
                "this run began with another limit of texts (max_text_bytes, or another tokenizer), or with a version "
                f"that orders documents in another way: set the limit back, or {ADVICE}"
            )
        looks = await asyncio.to_thread(
            source_changes.look_at_sources, self.sources, run_start.sources, whole_lines=self.only_new
        )
        found = compare_sources(run_start.sources, looks)
        if found.changes and not self.only_new:
            raise InputError(
                f"since this run began, its sources have changed: {changes_line(found.changes)}. {_advice(found)}"
            )
        if run_start.run_end is not None and await run_notes.is_complete(
            self.settings, self.topic, self.run, run_start, run_start.run_end
        ):
            return await self._following(partitions, run_start, run_start.run_end, found)
        run_start = run_start._replace(run_end=None)
        count = sum(seen.sent_now for seen in run_start.sources)
        position = await run_notes.read_position(self.settings, self.topic, self.run, run_start, count)
        _require_unsent(run_start.sources, position.checkpoint.state, found)
        sources = source_changes.sources_to_send(run_start.sources, self.sources)
        return _NextPart(run_start, position, sources, bool(found.of("new", "grown")), [])

    async def settle(self, run_start: RunStart, numbers: dict[int, int], after: SentBefore) -> None:
        """Note that all of a part is in the log. Waits for a broker that is away, as sending does."""
        wait = max(self.settings.wait_seconds, 60.0)  # all is acknowledged, only the note is missing
        waiting = self.settings.model_copy(update={"wait_seconds": wait})
        ends = await retry(waiting, lambda: run_notes.partition_ends(self.settings, self.topic, len(run_start.offsets)))
        settled = run_start._replace(run_end=RunEnd(numbers, ends, after))
        await run_notes.settle_note(self.client, self.topic, self.run, settled)

    async def _begin(
        self, partitions: int, present: Sequence[KnownSource], earlier: RunStart | None = None
    ) -> _NextPart:
        before = run_notes.NOTHING_BEFORE if earlier is None or earlier.run_end is None else earlier.run_end.after
        ends = await run_notes.partition_ends(self.settings, self.topic, partitions)
        started = max(time.time_ns() // 1_000_000, earlier.started_ms + 1 if earlier is not None else 0)
        run_start = RunStart(started, ends, tuple(present), before, self._order)
        await run_notes.write_note(self.client, self.topic, self.run, run_start, earlier)
        sources = source_changes.sources_to_send(present, self.sources)
        position = RunPosition.nothing(len(sources), partitions, before)
        return _NextPart(run_start, position, sources, more=False, left_out=[])

    async def _following(
        self, partitions: int, run_start: RunStart, run_end: RunEnd, found: SourceComparison
    ) -> _NextPart:
        left_out = found.of("changed", "gone", "renamed")
        if any(seen.sent_now for seen in found.present):
            return (await self._begin(partitions, found.present, run_start))._replace(left_out=left_out)
        position = RunPosition.nothing(0, len(run_start.offsets), run_end.after)
        return _NextPart(run_start, position, [], more=False, left_out=left_out)


def _advice(found: SourceComparison) -> str:
    if found.of("new", "grown", "renamed", "gone"):
        left = "; what has changed stays as it was sent" if found.of("changed") else ""
        return f"--only-new sends new files, and what files of lines have got{left}. {ADVICE}"
    return f"To send what you changed, name a file of its own. {ADVICE}"


def _require_unsent(known: Sequence[KnownSource], state: OrderState, found: SourceComparison) -> None:
    """Raise InputError where a source of which the part has still something to send has changed, or is gone."""
    lost = {change.name: change for change in found.of("changed", "gone")}
    sent_now = [seen.name for seen in known if seen.sent_now]
    waiting = {name for number, name in enumerate(sent_now) if number >= state.lanes[number % len(state.lanes)].file}
    there = {seen.name for seen in found.present}
    named = [lost[name] for name in waiting if name in lost]
    named += [change for change in found.of("renamed") if not waiting <= there]
    if named:
        raise InputError(
            f"this run was interrupted, and a source of its rest is not what it was: {changes_line(named)}. Put it "
            f"back, and the same command goes on; or {ADVICE}"
        )


SHORTEST_PAUSE_SECONDS: Final = 0.02
"""A pause for the rate is at least this long, so that a batch holds more than one document."""
MOST_CHECKPOINTS: Final = 64
"""Chunks after which open batches are sent: with keys, a batch that hardly grows would hold the checkpoint back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(ReadingPlan):
    """The options of a run."""

    rate: float | None = None
    """Bytes of values a second; None: as fast as possible."""
    compression: str | None = None
    """Codec of the batches: gzip, snappy, lz4 or zstd."""
    restart: bool = False
    only_new: bool = False
    """Of a finished run, send what was added since: new files, and lines at the end of files."""


async def produce(
    settings: Settings,
    topic: str,
    sources: Sequence[DocumentSource],
    plan: RunPlan | None = None,
    progress: Progress = lambda _: None,
) -> Summary:
    """Send the documents to the raw topic; on return each is acknowledged by all in-sync replicas, once.

    The same input is spread over the partitions in the same way, and evenly (`partition_of`). ``progress`` is
    called a few times a second and at the end. Memory is bounded whatever the source. An interrupted run has sent a
    first part of each partition's documents; with an identity, the next call sends the others, and none twice.

    Raises:
        TopicError: there is no such topic, or it takes no records.
        BrokerError: no broker answers; says how many documents were acknowledged.
        ClockError: the brokers do not take this machine's time.
        InputError: ``plan.on_error`` is ``fail``, and a document cannot be used, or the brokers refuse its record; all
            before it are acknowledged. Or the sources have changed since the run began, and how; or another call has
            taken the run over.
        SourceError: the topic no longer holds what says where the run continues.

    """
    plan = plan or RunPlan()
    count = await partition_count(settings, topic)
    dead_letters = await sending.require_dead_letters(settings, topic) if plan.on_error == "dead-letter" else None
    summary = Summary(topic, {partition: Acknowledged() for partition in range(count)})
    summary.limit = plan.limit
    size = sending.batch_bytes(count, await sending.topic_settings(settings, topic))
    try:
        async with _client(settings, topic, count, size, plan) as client, sending.reporting(summary, progress):
            run = _Run(settings, client, plan, summary, size, dead_letters)
            if plan.identity is None:
                await run.all(sources, RunPosition.nothing(len(sources), count))
            else:
                resuming = Resuming(settings, client, topic, plan.identity, sources, plan.only_new)
                await _in_parts(resuming, run, plan, summary, count)
    except BrokerError as error:
        with suppress(BrokerError):
            await sending.require_leaders(settings, topic)
        raise BrokerError(f"{error}. {summary.documents} documents were acknowledged before") from error
    return summary


async def _in_parts(resuming: Resuming, run: "_Run", plan: RunPlan, summary: Summary, partitions: int) -> None:
    restart, more = plan.restart, True
    while more:
        part = await resuming.next_part(partitions, restart=restart)
        summary.left_out = part.left_out
        whole = await run.all(part.sources, part.position, part.run_start.started_ms)
        if whole and part.run_start.run_end is None and (run.after.number or not run.after.refused):
            # (A run of which all was refused has sent nothing, and binds no later run: it is read again.)
            await resuming.settle(part.run_start, run.sender.last, run.after)
        restart, more = False, whole and part.more


@asynccontextmanager
async def _client(
    settings: Settings, topic: str, count: int, size: int, plan: RunPlan
) -> AsyncIterator[AIOKafkaProducer]:
    options: dict[str, Any] = {"max_batch_size": size + sending.MARK_BYTES, "compression_type": plan.compression}
    if plan.identity is None:
        async with producer(settings, **options) as client:
            yield client
    else:
        await ensure_produced(settings, topic)
        topics = {topic: count, produced_topic(topic): 1}
        name = run_notes.run_name(settings, plan.identity)
        async with sending.fenced_producer(settings, name, topics, **options) as client:
            yield client


@dataclass
class _Run:
    """Sends the parts of a run, one after the other."""

    _settings: Settings
    _client: AIOKafkaProducer
    _plan: RunPlan
    _summary: Summary
    _batch_size: int
    _dead_letters: LetterTopic | None
    _number: int = 0
    _parts: int = 0
    _bytes_put: int = 0
    _started: float = field(default_factory=time.monotonic)

    async def all(
        self, sources: Sequence[DocumentSource], position: RunPosition, started_ms: int | None = None
    ) -> bool:
        """Send the rest of a part, up to the limit; on return it is acknowledged. Returns whether the sources ended.

        ``started_ms`` is when the part began, for its marks; None: without marks.
        """
        self._take(sources, position, started_ms)
        try:
            with ReadingOrder(sources, position.checkpoint.state) as reading:
                await self._turns(reading)
        except InputError:  # what came before the document that ends the run is still to be acknowledged
            await self._settle()
            raise
        await self._settle()
        return not self._full()

    def _take(self, sources: Sequence[DocumentSource], position: RunPosition, started_ms: int | None) -> None:
        summary, checkpoint, plan = self._summary, position.checkpoint, self._plan
        self._parts += 1
        if self._parts == 1:  # of later ones, the first has counted all that came before
            summary.before = checkpoint.number - checkpoint.declined
            summary.refused = checkpoint.refused
            summary.broken = summary.broken_before = checkpoint.broken
        summary.bytes_total = sum(source.size for source in sources)
        self._number = checkpoint.number
        self._sent = position.sent
        self._partitions = len(position.sent)
        first = checkpoint._replace(refused=checkpoint.refused - checkpoint.declined)
        self._checkpoints = [first]  # each is kept until all documents before a later one are acknowledged
        self._started_ms = started_ms or 0
        mark = None if started_ms is None else self._mark
        client, letters = self._client, self._dead_letters
        self._refusals = Refusals(self._settings, client, summary, plan, letters, started_ms, checkpoint.declined)
        refuse, sent = self._refusals.take_record, dict(position.sent)
        self.sender = Sender(client, summary.topic, self._batch_size, summary.partitions, mark, refuse, sent)
        self._shuffle = ShuffleBuffer(plan.shuffle, plan.seed)

    @property
    def after(self) -> SentBefore:
        return SentBefore(self._number, self._summary.refused, self._summary.broken, self._refusals.declined)

    async def _turns(self, reading: ReadingOrder) -> None:
        async for turn in reading.turns():
            if turn is None:  # what was read is sent, for the next chunk may take long
                await self.sender.send_open()
            else:
                await self._items(self._shuffle.released(turn.chunk.placed()))
                self._summary.bytes_read = turn.bytes_read
                self._summary.count_unmet(turn.chunk.unmet)
                await self._checkpoint(turn.after)
            if self._full():
                break
        await self._items(self._shuffle.rest())

    def _full(self) -> bool:
        return self._plan.limit is not None and self._number >= self._plan.limit

    async def _settle(self) -> None:
        await self.sender.settle()
        await self._refusals.settle()

    async def _checkpoint(self, state: OrderState) -> None:
        """Remember where the order is; not with a shuffle buffer, whose content depends on all that was read.

        Dead letters of what was refused before are acknowledged first: the next call does not read that again.
        """
        if self._plan.shuffle or self._plan.identity is None:
            return
        await self._refusals.settle()
        refused = self._summary.refused - self._refusals.declined
        self._checkpoints.append(RunCheckpoint(self._number, state, refused, self._summary.broken))  # see `_mark`
        if len(self._checkpoints) > MOST_CHECKPOINTS:
            await self.sender.send_open()

    async def _items(self, items: Iterable[Placed]) -> None:
        sender, sent, count = self.sender, self._sent, self._partitions
        put, paced, limit = sender.put, self._plan.rate is not None, self._plan.limit
        for item, where in items:
            if isinstance(item, Refused):
                await self._refusals.take(item, first=not self._number)
                continue
            number = self._number
            if limit is not None and number >= limit:
                return
            value, key = item.value, item.key
            partition = partition_of(number, key, count)
            self._number = number + 1
            if number <= sent[partition]:
                self._summary.before += 1
                continue
            if paced:
                await self._pace()
            record = SentDocument(key, value, number, where)
            if not put(partition, record):
                await sender.send(partition)
                put(partition, record)
            self._bytes_put += len(value)

    def _mark(self, number: int, unsettled: int) -> bytes:
        del self._checkpoints[: bisect_right(self._checkpoints, unsettled, key=attrgetter("number")) - 1]
        first = self._checkpoints[0]
        declined = self._refusals.declined_before(first.number)
        checkpoint = first._replace(refused=first.refused + declined, declined=declined)
        return run_notes.encode_mark(BatchMark(self._plan.identity or "", self._started_ms, number, checkpoint))

    async def _pace(self) -> None:
        early = self._bytes_put / (self._plan.rate or 1.0) - (time.monotonic() - self._started)
        if early > SHORTEST_PAUSE_SECONDS:
            await self.sender.send_open()
            await asyncio.sleep(early)


def partition_of(number: int, key: bytes | None, count: int) -> int:
    """Return the partition, of ``count``, of the document with this number in its run.

    With a key, it is the one that Kafka's own clients choose. Else documents are dealt out in rounds, each of which
    begins where a hash of its number says: whatever alternates in the source, each partition gets of everything.
    """
    if key is not None:
        return int(murmur2(key) & 0x7FFFFFFF) % count
    return (number + xxhash.xxh32_intdigest((number // count).to_bytes(8, "little"))) % count


async def flush(settings: Settings, topic: str) -> int:
    """Append a flush record to every partition of a raw topic; return their number. On return they are acknowledged.

    Raises SettingsError where the settings, or the recipe of every stream of the topic, say that a flush is a
    tombstone; TopicError where there is no such topic; and BrokerError where no broker answers.
    """
    require_flush_allowed(settings, topic)
    count = await partition_count(settings, topic)
    with suppress(TopicError):  # there is no stream yet, or it is not for this login to see
        streams = await settled_streams(settings.model_copy(update={"raw_topics": (topic,)}))
        if not any(settled.genesis.recipe.allow_flush for settled in streams):  # recipes count, not settings
            raise SettingsError(f"the streams of {topic} were settled with allow_flush = false: {_WITHOUT_FLUSH}")
    async with producer(settings) as client:
        sent = []
        for partition in range(count):
            batch = client.create_batch()  # `send` takes no record without key and value
            batch.append(timestamp=None, key=None, value=None, headers=[FLUSH_HEADER])
            batch.close()
            sent.append(await client.send_batch(batch, topic, partition=partition))
        with sending_to(topic):
            await asyncio.gather(*sent)
    return count


def require_flush_allowed(settings: Settings, topic: str) -> None:
    """Raise SettingsError where, by the settings, a flush of the raw topic would be a tombstone."""
    if not settings.for_topic(topic).allow_flush:
        raise SettingsError(f"allow_flush = false for {topic}: {_WITHOUT_FLUSH}")


_WITHOUT_FLUSH: Final = (
    "a flush is a tombstone there, and nothing was written. The last tokens are published as soon as more text fills "
    "their blocks; to fill them with padding, give the topic a stream of its own that allows it (stream_suffix)"
)
