"""One token partition on its way into a store, in a segment worker or a mirror: from lock and recovery to the end.

What continues the chain is appended as it comes, and committed in time. Where a partition begins,
on disk and on its topic, and what is done about a missing block, is in `app.segments.following`.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, GapError, StoreError, TokenMillError
from tokenmill.reading import Acceptor, Gap, Taken
from tokenmill.recipe import Recipe
from tokenmill.store import PartitionWriter, Start, Store
from tokenmill.store.layout import partition_directory
from tokenmill.wire.message import Message

from ..kafka.clients import consumer, offsets
from ..kafka.control_log import IgnoreList
from ..kafka.fetched_batches import FetchedBatch, unpacked
from ..kafka.token_topic import message_at, offered
from ..settings import Settings
from ..tasks import in_thread
from ..telemetry import worker_metrics as metrics
from ..telemetry.measuring import LagAge, PartitionProgress, StageClock, State, waiting_status
from .following import GapSearch, cut_off, find_start, holds_beginning, late_start, open_writer

HALTING = (DamagedError, DifferenceError, FingerprintError, GapError)
"""What only a person can remedy: the topic or the store contradicts itself, or the stream."""
COMMIT_SECONDS: Final = 0.25
"""Shortest time between two commits of a partition: each syncs three times, so blocks that come faster share one."""

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContext:
    """What all partitions of a stream share in a process that fills a store: a segment worker, or a mirror."""

    settings: Settings
    store: Store
    stream: str
    recipe: Recipe
    ignored: IgnoreList
    """Messages that are passed over; grows while control topics are read."""
    start_partition: Callable[[TopicPartition, int], Awaitable[int | None]]
    """Seeks, and lets the partition flow; the generation of what comes from there, None where it is no longer ours."""
    set_durable: Callable[[TopicPartition, int], None]
    end_offset: Callable[[TopicPartition], int]
    """The last known end of a partition."""
    fail: Callable[[Exception], None]
    """Called with what only a new start gets over, by its recovery; the partition does nothing more. May not return."""

    def circumstances(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return something that differs once the reason of a partition's halt may have ended.

        That is the length of its ignore list, and when names in its directory and in the stream's changed last: repairs
        put whole files in their places.
        """
        directory = partition_directory(self.store.path, self.stream, tp.partition)
        changed = [path.stat().st_mtime_ns if path.exists() else 0 for path in (directory, directory.parent)]
        return (self.ignored.size(tp.partition), *changed)


class BlockAppender:
    """The open directory of one partition, and its chain as far as it was taken.

    Its methods work on files. They are called in threads, one at a time, and raise as `PartitionWriter` does.
    """

    def __init__(self, tp: TopicPartition, context: SegmentContext, writer: PartitionWriter) -> None:
        """Append what comes on the token topic ``tp``, but for what is ignored, to ``writer``, and close that."""
        self.writer = writer
        self.closed = False
        """Whether the directory is unlocked, and nothing can be appended any more."""
        self.committed = writer.next_block
        """Number of the block after the last one that is durable."""
        self.newest_timestamp = 0
        """When the newest source record with durable tokens was written, in milliseconds since 1970; 0: unknown."""
        self._tp, self._context = tp, context
        self._uncommitted: list[int] = []
        """Timestamps of the last source records of messages whose blocks were appended and not committed."""
        self._acceptor = self._new_acceptor()

    def _new_acceptor(self) -> Acceptor:
        writer, recipe = self.writer, self._context.recipe
        place = (recipe.fingerprint, self._tp.partition, recipe.block_bytes)
        return Acceptor(*place, block=writer.next_block, chain=writer.chain, recall=writer.chain_before)

    @property
    def next_block(self) -> int:
        """The number of the block that is wanted next."""
        return self._acceptor.next_block

    def begin(self, start: Start) -> None:
        """Let the partition, of which the store holds nothing, begin there."""
        self.writer.begin(start)
        self.committed = start.block
        self._acceptor = self._new_acceptor()

    def append(self, records: Sequence[SourceRecord], search: GapSearch) -> Gap | None:
        """Append new blocks; return a gap if there is one. Before an error is raised, the rest is committed."""
        gap: Gap | None = None
        for record in records:
            try:
                found = offered(self._acceptor, record, self._tp, self._context.ignored)
            except HALTING:
                self.commit()
                raise
            if found is None:
                metrics.IGNORED.inc()
                continue
            message, verdict = found
            search.saw(message)
            if isinstance(verdict, Gap):
                metrics.GAPS.inc()
                gap = verdict
                continue
            metrics.DUPLICATES.inc(verdict.dropped)
            if isinstance(verdict, Taken) and verdict.blocks.entries:
                self.writer.append(verdict.blocks, token_offset=record.offset)
                self._uncommitted.append(message.cursor.last_timestamp)
        return gap

    def commit(self) -> None:
        """Make durable what was appended, and count it: it can be trained on now."""
        self.writer.commit()
        metrics.BLOCKS.labels(self._context.stream, "segment").inc(self.writer.next_block - self.committed)
        self.committed = self.writer.next_block
        now, latency = time.time(), metrics.LATENCY_SECONDS.labels(self._context.stream)
        for timestamp in self._uncommitted:
            self.newest_timestamp = max(self.newest_timestamp, timestamp)
            latency.observe(max(0.0, now - timestamp / 1000))
        self._uncommitted.clear()

    def close(self) -> None:
        """Unlock the directory."""
        self.writer.close()
        self.closed = True


class TokenPartition:
    """Appends one chain to the store: `resume`, then `feed` again and again; `stop` ends it."""

    def __init__(self, tp: TopicPartition, context: SegmentContext) -> None:
        self.tp = tp
        self._log = log.bind(topic=tp.topic, partition=tp.partition)
        self._tokens = TopicPartition(*tp)
        self.halt: TokenMillError | None = None
        """What only a person can remedy, and why the partition is halted; or None."""
        self.waiting: TokenMillError | None = None
        """What the partition waits for at the moment, or None."""
        self._context = context
        self._generation: int | None = None
        """What the last start of the partition returned; None while nothing may be appended."""
        self._stopped = False
        self._failed = False
        self._seen_at_halt: tuple[int, ...] = ()
        self._appender: BlockAppender | None = None
        """Since the directory was opened last; closed once it is unlocked."""
        self._lock = asyncio.Lock()
        """Held while a thread works with the appender."""
        self._closing: asyncio.Task[None] | None = None
        self._gaps = GapSearch()
        self._committed_at = -math.inf
        self._late_commit: asyncio.Task[None] | None = None
        self._appended_to = 0
        """The offset up to which the topic was appended, committed or not."""
        self._position: int | None = None
        """The offset up to which what the topic held is durable; None before the first start."""
        self._lag_age = LagAge()
        self._clock = StageClock()

    @property
    def halted(self) -> str | None:
        """Why the partition is halted, or None."""
        return None if self.halt is None else str(self.halt)

    @property
    def vain_looks(self) -> int:
        """How often, in a row, all that the topic holds was looked through for a missing block, and in vain."""
        return self._gaps.vain_looks

    async def resume(self) -> None:
        """Lock and recover the directory, however long another holds it; follow the topic. Also after a halt."""
        self._clock.enter("resume")
        if self.halt is not None:
            await self.closed()
            self.halt = None
            self._log.info("partition is tried again")
        try:
            appender = await self._open()
            if appender is None:
                return
            async with consumer(self._context.settings) as client:
                await self._begin_late(client, appender)
                start = await self._find_start(client, appender)
        except HALTING as error:
            self._halt(error)
            return
        await self._start(start)
        self._log.info(
            "partition resumed", block=appender.next_block,
            offset=start, truncated_bytes=appender.writer.truncated_bytes,
        )  # fmt: skip

    async def _open(self) -> BlockAppender | None:
        """Wait for the directory's lock and its disk; None where the partition was stopped meanwhile."""
        context = self._context
        writer = await open_writer(
            context.store, context.stream, self.tp.partition, lambda: not self._stopped, self._wait
        )
        if writer is None:
            return None
        self.waiting = None
        metrics.TRUNCATED_BYTES.inc(writer.truncated_bytes)
        appender = BlockAppender(self.tp, context, writer)
        if self._appender is not None:
            appender.newest_timestamp = self._appender.newest_timestamp
        self._appender = appender
        return appender

    def _wait(self, event: str, error: TokenMillError) -> None:
        if str(self.waiting) != str(error):
            self._log.warning(event, reason=str(error))
        self.waiting = error

    async def _begin_late(self, client: AIOKafkaConsumer, appender: BlockAppender) -> bool:
        """Let a partition without blocks begin where its topic does; return whether the next block can come."""
        tokens, context, writer = self._tokens, self._context, appender.writer
        if await holds_beginning(client, tokens, context.recipe, writer.next_block) or writer.begun:
            return True
        start = await late_start(client, tokens, context.recipe, writer.segment_blocks, context.ignored)
        if start is None:
            return False
        async with self._lock:
            await in_thread(partial(appender.begin, start))
        self._log.warning("the store begins later: the token topic no longer holds what was before", block=start.block)
        return True

    async def _find_start(self, client: AIOKafkaConsumer, appender: BlockAppender) -> int:
        tokens, recipe, writer = self._tokens, self._context.recipe, appender.writer
        held = (await offsets(client, [tokens]))[tokens]

        async def first_message(offset: int) -> Message | None:
            return await message_at(client, tokens, recipe.fingerprint, (offset, held[1]))

        start, hint = await find_start(held, writer.next_block, writer.chain, writer.source_hint, first_message)
        if hint is not None:
            appender.newest_timestamp = hint.cursor.last_timestamp
        return start

    async def _start(self, offset: int, *, first: int | None = None) -> None:
        from_first = offset == first
        self._gaps.began(cut=from_first and offset > 0, from_first=from_first)
        self._generation = await self._context.start_partition(self.tp, offset)
        self._position = offset
        self._lag_age.begin(0)
        self._clock.wait()

    async def feed(self, batch: FetchedBatch) -> None:
        """Append what continues the chain; it is durable when this returns, or at most `COMMIT_SECONDS` later."""
        async with self._lock:
            appender = self._appender
            if appender is None or appender.closed or not self._may_append(batch.generation):
                return
            self._clock.enter("other")
            records = unpacked(batch.records, batch.position)
            self._lag_age.passed(records)
            started = time.perf_counter()
            gap = await self._guarded(in_thread(partial(appender.append, records, self._gaps)))
            if not self._may_append(batch.generation):
                return
            self._clock.divide({"append": time.perf_counter() - started})
            self._appended_to = batch.position
            wait = self._committed_at + COMMIT_SECONDS - time.monotonic()
            if wait <= 0:
                await self._commit()
            elif self._late_commit is None:
                self._late_commit = asyncio.create_task(self._commit_late(wait), name=f"commit {self.tp}")
            self._clock.wait()
        await self._mind_gap(appender, gap, batch.position)

    def _may_append(self, generation: int) -> bool:
        """Whether what was fetched in this generation is still wanted: nothing was sought, stopped or halted since."""
        return generation == self._generation and not self.halt

    async def _commit(self) -> None:
        """Make durable what was appended; the lock is held."""
        appender = self._appender
        if appender is None or appender.closed or self.halt or self._failed:
            return
        if appender.writer.next_block > appender.committed:
            self._clock.enter("sync")
            started = time.perf_counter()
            await self._guarded(in_thread(appender.commit))
            if self.halt or self._failed:
                return
            self._committed_at = time.monotonic()
            metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
            metrics.COMMITS.inc()
        self._position = self._appended_to
        self._context.set_durable(self.tp, self._position)

    async def _commit_late(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._late_commit = None
        try:
            async with self._lock:
                await self._commit()
                if not self.halt:
                    self._clock.wait()
        except Exception as error:  # noqa: BLE001 - this is not awaited, and must not fail in silence
            self._fail(error)

    async def _guarded(self, work: Awaitable[T]) -> T | None:
        """Await work with files. What only a person can remedy halts the partition; other store errors fail it."""
        try:
            return await work
        except HALTING as error:
            self._halt(error)
        except StoreError as error:
            self._fail(error)
        return None

    async def _mind_gap(self, appender: BlockAppender, gap: Gap | None, position: int) -> None:
        """Read on to the end of the topic after a gap, then look through the whole partition again.

        The missing block may have been written again anywhere, above or below. Waits between two looks that found
        nothing, loudly and ever longer; halts if the block is below all that the topic retains.
        """
        search, wanted = self._gaps, appender.next_block
        if gap is not None and search.miss(gap, max(position, self._context.end_offset(self.tp))):
            place = f"{self.tp.topic}[{self.tp.partition}]"
            self.waiting = GapError(f"block {gap.wanted}: the next one on {place} is {gap.found}")
            log.warning("a block is missing", reason=str(self.waiting))
        if search.missing is None:
            self.waiting = None
        if not search.is_over(position):
            return
        if search.is_hopeless(wanted) and (appender.closed or appender.writer.begun):
            self._halt(cut_off(self._context.store.path, self._context.stream, self._tokens, wanted))
            return
        pause = search.pause(wanted)
        self._generation = None
        self._clock.enter("resume")
        if pause:
            await asyncio.sleep(pause)
        try:
            await self._look_again(appender)
        except HALTING as error:
            self._halt(error)

    async def _look_again(self, appender: BlockAppender) -> None:
        async with consumer(self._context.settings) as client:
            first, _ = (await offsets(client, [self._tokens]))[self._tokens]
            start = first
            if not (appender.closed or appender.writer.begun) and await self._begin_late(client, appender):
                start = await self._find_start(client, appender)
        if not self._stopped:
            await self._start(start, first=first)

    def _halt(self, error: TokenMillError) -> None:
        """Append nothing more, and unlock the directory, so that it can be repaired while this process runs."""
        self.halt = error
        self._generation = None
        self._seen_at_halt = self._context.circumstances(self.tp)
        self._begin_closing()
        self._clock.enter("halted")
        self._log.error("partition halted", reason=self.halted)

    def may_go_on(self) -> bool:
        """Return whether something changed since the halt that may have ended its reason: then `resume` again."""
        stands = self.halt is not None and not self._stopped
        return stands and self._context.circumstances(self.tp) != self._seen_at_halt

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._generation = None
        self._context.fail(error)

    def stop(self) -> None:
        """Append nothing more, and unlock the directory once what is being written is written."""
        self._stopped = True
        self._generation = None
        self._clock.stop()
        self._begin_closing()

    def _begin_closing(self) -> None:
        if self._appender is not None and not self._appender.closed:
            self._closing = asyncio.get_running_loop().create_task(self._close(self._appender))

    async def _close(self, appender: BlockAppender) -> None:
        async with self._lock:
            try:
                await self._commit()
            finally:
                if not appender.closed:
                    appender.close()

    async def closed(self) -> None:
        """Wait, after `stop`, until the directory is free."""
        if self._closing is not None:
            await self._closing

    def progress(self) -> PartitionProgress:
        """Return where the partition is, for its gauges."""
        started = self._generation is not None
        state: State = "running" if started else "resuming"
        return PartitionProgress(
            state="halted" if self.halt else "waiting" if self.waiting else state,
            position=self._position if started else None,
            stream=self._context.stream,
            newest_timestamp=self._appender.newest_timestamp if self._appender is not None else 0,
            lag_age=self._lag_age,
            clock=self._clock,
        )

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people."""
        return {
            "block": self._appender.committed if self._appender is not None else None,
            "halted": self.halted,
            "halted_by": self.halt.brief if self.halt is not None else None,
            **waiting_status(self.waiting, self._clock),
        }
