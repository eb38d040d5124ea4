"""One token partition on its way into a store, in a segment worker or a mirror: from lock and recovery to the end."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, GapError, StoreError, TokenMillError
from tokenmill.reading.acceptance import Acceptor, Gap, Taken
from tokenmill.reading.following import Search, find_start
from tokenmill.records import SourceRecord
from tokenmill.store import PartitionWriter
from tokenmill.wire.message import Message

from .. import telemetry as metrics
from ..kafka.clients import consumer, offsets
from ..kafka.token_topic import message_at, offered
from ..tasks import in_thread
from ..telemetry.lag_age import Trail
from ..telemetry.measuring import Standing, State
from ..telemetry.stage_clock import StageClock
from ..worker.ownership import FetchedBatch
from .context import SegmentContext
from .late_start import cut_off, late_start
from .store_opening import open_writer

HALTING = (DamagedError, DifferenceError, FingerprintError, GapError)
COMMIT_SECONDS: Final = 0.25
"""Shortest time between two commits of a partition: each syncs three times, so blocks that come faster share one."""
GAP_SECONDS: Final = 1.0
"""How soon a partition that misses a block looks through the whole token partition again; then ever later."""
LONGEST_GAP_SECONDS: Final = 60.0

T = TypeVar("T")

log = structlog.get_logger(__name__)


class TokenPartition:
    """Appends one chain to the store: `resume`, then `feed` again and again; `stop` ends it."""

    def __init__(self, tp: TopicPartition, context: SegmentContext) -> None:
        """Do nothing yet."""
        self.tp = tp
        self.halt: TokenMillError | None = None
        """What only a person can mend, and why the partition stands; or None."""
        self.waiting: str | None = None
        """What the partition waits for at the moment, or None."""
        self._context = context
        self._epoch: int | None = None
        self._stopped = False
        self._failed = False
        self._closing: asyncio.Task[None] | None = None
        self._writer: PartitionWriter | None = None
        self._opened = False
        self._seen_at_halt: tuple[int, ...] = ()
        self._acceptor: Acceptor | None = None
        self._search = Search()
        self._patience = GAP_SECONDS
        self.vain_looks = 0
        """How often, in a row, all that the topic holds was looked through for a missing block, and in vain."""
        self._looks_at_all = False
        """Whether the partition is read from its first offset, so that a block that is missed then is not there."""
        self._lock = asyncio.Lock()
        self._appended_to = 0
        self._committed = 0
        self._committed_at = 0.0
        self._commit_later: asyncio.Task[None] | None = None
        self._uncommitted: list[int] = []
        self._position: int | None = None
        self._newest = 0
        self._trail = Trail()
        self._clock = StageClock()

    @property
    def halted(self) -> str | None:
        """Why the partition stands, or None."""
        return None if self.halt is None else str(self.halt)

    async def resume(self) -> None:
        """Lock and recover the partition's directory, however long another holds it; then follow the token topic.

        After a halt it may be called again (`may_go_on`), and begins as if for the first time.
        """
        self._clock.enter("resume")
        if self.halt is not None:
            await self.closed()
            self.halt = None
            self._search = Search()
            self._uncommitted.clear()
            log.info("partition is tried again", topic=self.tp.topic, partition=self.tp.partition)
        writer = await self._open_writer()
        if writer is None:
            return
        try:
            async with consumer(self._context.settings) as client:
                await self._begin_later(client, writer)
                start = await self._find_start(client, writer)
        except HALTING as error:
            self._halt(error)
            return
        await self._start(start)
        log.info(
            "partition resumed", topic=self.tp.topic, partition=self.tp.partition, block=writer.next_block,
            offset=start, truncated_bytes=writer.truncated_bytes,
        )  # fmt: skip

    async def _open_writer(self) -> PartitionWriter | None:
        context = self._context
        try:
            writer = await open_writer(
                context.store, context.stream, self.tp.partition, lambda: not self._stopped, self._wait
            )
        except HALTING as error:
            self._halt(error)
            return None
        if writer is not None:
            self.waiting = None
            self._opened = True
            metrics.TRUNCATED_BYTES.inc(writer.truncated_bytes)
            self._writer = writer
            self._committed = writer.next_block
        return writer

    def _wait(self, event: str, error: Exception) -> None:
        """Say what the partition waits for, each reason once."""
        if self.waiting != str(error):
            log.warning(event, topic=self.tp.topic, partition=self.tp.partition, reason=str(error))
        self.waiting = str(error)

    async def _begin_later(self, client: AIOKafkaConsumer, writer: PartitionWriter) -> bool:
        """Let a partition of which the store holds nothing begin where the token topic does; stand before its block.

        Return whether the next block can come: False where the topic does not hold a segment's first block yet.
        """
        tokens = TopicPartition(self.tp.topic, self.tp.partition)
        span = (await offsets(client, [tokens]))[tokens]
        oldest = await message_at(client, tokens, self._context.recipe.fingerprint, span)
        reaches = not span[0] or oldest is None or oldest.first <= writer.next_block
        if not (reaches or writer.begun):
            start = await late_start(client, tokens, self._context.recipe, writer.segment_blocks, self._context.ignored)
            reaches = start is not None
            if start is not None:
                async with self._lock:
                    await in_thread(partial(writer.begin, start))
                    self._committed = start.block
                log.warning(
                    "the store begins later: the token topic no longer holds what was before",
                    topic=self.tp.topic, partition=self.tp.partition, block=start.block,
                )  # fmt: skip
        recipe = self._context.recipe
        self._acceptor = Acceptor(
            recipe.fingerprint,
            self.tp.partition,
            recipe.block_bytes,
            block=writer.next_block,
            chain=writer.chain,
            recall=writer.chain_before,
        )
        return reaches

    async def _find_start(self, client: AIOKafkaConsumer, writer: PartitionWriter) -> int:
        """Return an offset at or below the wanted block: the hint where it is true, else found by number."""
        partition = TopicPartition(self.tp.topic, self.tp.partition)
        held = (await offsets(client, [partition]))[partition]

        async def first_message(offset: int) -> Message | None:
            return await message_at(client, partition, self._context.recipe.fingerprint, (offset, held[1]))

        start, hint = await find_start(held, writer.next_block, writer.chain, writer.source_hint, first_message)
        if hint is not None:
            self._newest = hint.cursor.last_timestamp
        return start

    def stop(self) -> None:
        """Append nothing more, and give the directory free once what is being written is written."""
        self._stopped = True
        self._epoch = None
        self._clock.stop()
        if self._writer is not None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def closed(self) -> None:
        """Wait, after `stop`, until the directory is free."""
        if self._closing is not None:
            await self._closing

    async def _close(self) -> None:
        async with self._lock:
            try:
                await self._commit()
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None

    async def feed(self, batch: FetchedBatch) -> None:
        """Append what continues the chain; it is durable when this returns, or at most `COMMIT_SECONDS` later."""
        async with self._lock:
            if not self._may_append(batch.generation) or self._writer is None:
                return
            self._clock.enter("other")
            self._trail.passed(batch.records)
            started = time.perf_counter()
            gap = await self._write(partial(self._append, self._writer, batch.records))
            if not self._may_append(batch.generation):
                return
            self._clock.divide({"append": time.perf_counter() - started})
            self._appended_to = batch.position
            wait = self._committed_at + COMMIT_SECONDS - time.monotonic()
            if wait <= 0:
                await self._commit()
            elif self._commit_later is None:
                self._commit_later = asyncio.create_task(self._commit_after(wait), name=f"commit {self.tp}")
            self._clock.wait()
        await self._mind_gap(gap, batch.position)

    def _may_append(self, epoch: int) -> bool:
        """Whether what was fetched in ``epoch`` is still wanted: nothing was sought, stopped or halted since."""
        return epoch == self._epoch and not self.halt

    async def _commit_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._commit_later = None
        try:
            async with self._lock:
                await self._commit()
                if not self.halt:
                    self._clock.wait()
        except Exception as error:  # noqa: BLE001 - nobody awaits this task, so it must not fail in silence
            self._fail(error)

    async def _commit(self) -> None:
        """Make durable what was appended; the lock is held."""
        if self._writer is None or self.halt or self._failed:
            return
        if self._writer.next_block > self._committed:
            self._clock.enter("sync")
            started = time.perf_counter()
            await self._write(self._writer.commit)
            if self.halt or self._failed:
                return
            self._committed_at = time.monotonic()
            metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
            metrics.COMMITS.inc()
            self._count_committed(self._writer)
        self._position = self._appended_to
        self._context.set_durable(self.tp, self._position)

    async def _write(self, action: Callable[[], T]) -> T | None:
        """Do something with the writer in a thread; what a new start cannot mend halts the partition."""
        try:
            return await in_thread(action)
        except HALTING as error:
            self._halt(error)
        except StoreError as error:
            self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._epoch = None
        self._context.fail(error)

    def _append(self, writer: PartitionWriter, records: Sequence[SourceRecord]) -> Gap | None:
        """Append the records' new blocks; return a gap that is worth looking through the topic for."""
        gap: Gap | None = None
        acceptor = self._acceptor
        if acceptor is None:
            return None
        for record in records:
            try:
                found = offered(acceptor, record, self.tp, self._context.ignored)
            except HALTING:
                writer.commit()  # what came before is right, and is not to be lost with the halt
                self._count_committed(writer)
                raise
            if found is None:
                metrics.IGNORED.inc()
                continue
            message, verdict = found
            self._search.saw(message)
            if isinstance(verdict, Gap):
                metrics.GAPS.inc()
                gap = verdict
            elif isinstance(verdict, Taken):
                metrics.DUPLICATES.inc(verdict.dropped)
                if verdict.blocks.entries:
                    writer.append(verdict.blocks, token_offset=record.offset)
                    self._uncommitted.append(message.cursor.last_timestamp)
            else:
                metrics.DUPLICATES.inc(verdict.dropped)
        return gap

    def _count_committed(self, writer: PartitionWriter) -> None:
        """Take note that all that was appended can be trained on now."""
        metrics.BLOCKS.labels(self._context.stream, "segment").inc(writer.next_block - self._committed)
        self._committed = writer.next_block
        now, latency = time.time(), metrics.LATENCY_SECONDS.labels(self._context.stream)
        for timestamp in self._uncommitted:
            self._newest = max(self._newest, timestamp)
            latency.observe(max(0.0, now - timestamp / 1000))
        self._uncommitted.clear()

    async def _mind_gap(self, gap: Gap | None, position: int) -> None:
        """Read on to the end of the topic after a gap, then look through the whole partition again.

        The missing block may have been written again anywhere, above or below. Waits between two looks that found
        nothing, loudly and ever longer; halts if the block lies below all that the topic retains.
        """
        search, acceptor = self._search, self._acceptor
        if gap is not None and search.miss(gap, max(position, self._context.end_offset(self.tp))):
            self.waiting = f"block {gap.wanted}: the next one on {self.tp.topic}[{self.tp.partition}] is {gap.found}"
            log.warning("a block is missing", reason=self.waiting)
        if search.missing is None:
            self.waiting = None
        if search.missing is None or acceptor is None or not search.is_over(position):
            return
        if search.is_hopeless(acceptor.next_block) and (self._writer is None or self._writer.begun):
            tokens = TopicPartition(self.tp.topic, self.tp.partition)
            self._halt(cut_off(self._context.store.path, self._context.stream, tokens, acceptor.next_block))
            return
        found_some = acceptor.next_block > search.missing.wanted
        self.vain_looks = 0 if found_some else self.vain_looks + self._looks_at_all
        self._patience = GAP_SECONDS if found_some else min(2 * self._patience, LONGEST_GAP_SECONDS)
        self._epoch = None
        self._clock.enter("resume")
        if not found_some:
            await asyncio.sleep(self._patience)
        await self._look_again()

    async def _look_again(self) -> None:
        """Read from the partition's start."""
        partition = TopicPartition(self.tp.topic, self.tp.partition)
        async with consumer(self._context.settings) as client:
            first, _ = (await offsets(client, [partition]))[partition]
            start = first
            if self._writer is not None and not self._writer.begun and await self._begin_later(client, self._writer):
                start = await self._find_start(client, self._writer)
        if not self._stopped:
            await self._start(start, first=first)

    async def _start(self, offset: int, *, first: int | None = None) -> None:
        """Follow the token topic from ``offset``; ``first`` is where it begins, if that is known."""
        self._looks_at_all = offset == first
        self._search.began(cut=self._looks_at_all and offset > 0)
        self._epoch = await self._context.start_partition(self.tp, offset)
        self._position = offset
        self._trail.begin(0)
        self._clock.wait()

    def _halt(self, error: TokenMillError) -> None:
        """Stand still, and let go of the directory, so that it can be repaired beside this process."""
        self.halt = error
        self._epoch = None
        self._seen_at_halt = self._context.circumstances(self.tp)
        if self._writer is not None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        self._clock.enter("halted")
        log.error("partition halted", topic=self.tp.topic, partition=self.tp.partition, reason=self.halted)

    def may_go_on(self) -> bool:
        """Return whether something changed since the halt that may have ended its reason: then `resume` again.

        That is the ignore list, and the directory, in which repairs put files in their places.
        """
        return (
            self.halt is not None and not self._stopped and self._context.circumstances(self.tp) != self._seen_at_halt
        )

    def standing(self) -> Standing:
        """Return where the partition stands, for its gauges."""
        started = self._epoch is not None
        state: State = "running" if started else "resuming"
        return Standing(
            state="halted" if self.halt else "waiting" if self.waiting else state,
            position=self._position if started else None,
            stream=self._context.stream,
            newest_timestamp=self._newest,
            trail=self._trail,
            clock=self._clock,
        )

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people."""
        return {
            "block": self._committed if self._opened else None,
            "halted": self.halted,
            "halted_by": self.halt.brief if self.halt is not None else None,
            "waiting": self.waiting,
        }
