"""One token partition on one segment worker: from lock and recovery until it is revoked."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from faust.types import TP

from tokenmill.acceptance import Acceptor, Gap, Taken
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, GapError, LockedError, StoreError
from tokenmill.message import Message
from tokenmill.recipe import Recipe
from tokenmill.segments import PartitionWriter, Store

from . import metrics
from .ending import end_process
from .kafka import consumer, offsets, read_range
from .metrics.measuring import Standing, State
from .metrics.stage_clock import Stage, StageClock
from .metrics.trail import Trail
from .settings import Settings
from .tail import message_of
from .transport import Batch

HALTING = (DamagedError, DifferenceError, FingerprintError, GapError)
LOCK_SECONDS: Final = 0.25
"""How soon a partition that waits for its directory tries again."""
GAP_SECONDS: Final = 1.0
"""How soon a partition that misses a block looks through the whole token partition again; then ever later."""
LONGEST_GAP_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContext:
    """What all partitions of a stream on one segment worker share."""

    settings: Settings
    store: Store
    stream: str
    recipe: Recipe
    start_partition: Callable[[TP, int], Awaitable[int | None]]
    set_durable: Callable[[TP, int], None]
    end_offset: Callable[[TP], int]
    """The last known end of a partition."""


class TokenPartition:
    """Appends one chain to the store: `resume`, then `feed` again and again; `stop` ends it."""

    def __init__(self, tp: TP, context: SegmentContext) -> None:
        """Do nothing yet."""
        self.tp = tp
        self.halted: str | None = None
        """Why the partition stands, or None."""
        self.waiting: str | None = None
        """What the partition waits for at the moment, or None."""
        self._context = context
        self._epoch: int | None = None
        self._stopped = False
        self._closing: asyncio.Task[None] | None = None
        self._writer: PartitionWriter | None = None
        self._acceptor: Acceptor | None = None
        self._missing: Gap | None = None
        self._look_until = 0
        self._patience = GAP_SECONDS
        self._lock = asyncio.Lock()
        self._position: int | None = None
        self._newest = 0
        self._spent: Mapping[Stage, float] = {}
        self._trail = Trail()
        self._clock = StageClock()

    async def resume(self) -> None:
        """Lock and recover the partition's directory, however long another holds it; then follow the token topic."""
        self._clock.enter("resume")
        writer = await self._open_writer()
        if writer is None:
            return
        recipe = self._context.recipe
        self._acceptor = Acceptor(
            recipe.fingerprint,
            self.tp.partition,
            recipe.block_bytes,
            block=writer.next_block,
            chain=writer.chain,
            recall=writer.chain_before,
        )
        async with consumer(self._context.settings) as client:
            start = await self._find_start(client, writer)
        await self._start(start)
        log.info(
            "partition resumed", topic=self.tp.topic, partition=self.tp.partition, block=writer.next_block,
            offset=start, truncated_bytes=writer.truncated_bytes,
        )  # fmt: skip

    async def _open_writer(self) -> PartitionWriter | None:
        while not self._stopped:
            try:
                writer = await self._opened()
            except LockedError as error:
                if self.waiting is None:
                    log.warning("waiting for the directory", reason=str(error))
                self.waiting = str(error)
                await asyncio.sleep(LOCK_SECONDS)
            except HALTING as error:
                self._halt(error)
                return None
            else:
                self.waiting = None
                metrics.TRUNCATED_BYTES.inc(writer.truncated_bytes)
                self._writer = writer
                return writer
        return None

    async def _opened(self) -> PartitionWriter:
        """Open the writer in a thread; if this is cancelled meanwhile, the writer is closed and not left behind."""
        context = self._context
        opening = asyncio.create_task(
            asyncio.to_thread(PartitionWriter.open, context.store, context.stream, self.tp.partition)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: None if done.exception() else done.result().close())
            raise

    async def _find_start(self, client: AIOKafkaConsumer, writer: PartitionWriter) -> int:
        """Return an offset at or below the wanted block: the hint where it is true, else found by number."""
        partition = TopicPartition(self.tp.topic, self.tp.partition)
        first, end = (await offsets(client, [partition]))[partition]
        if first <= writer.source_hint < end:
            message = message_of(await _record_at(client, partition, writer.source_hint, end))
            if message.first < writer.next_block <= message.end and (
                message.end > writer.next_block or message.after == writer.chain
            ):
                self._newest = message.cursor.last_timestamp
                return writer.source_hint
        low, high = first, end
        while high - low > 1:
            middle = (low + high) // 2
            record = await _record_at(client, partition, middle, end)
            if record is not None and message_of(record).first <= writer.next_block:
                low = middle
            else:
                high = middle
        return low

    def stop(self) -> None:
        """Append nothing more, and give the directory free once what is being written is written."""
        self._stopped = True
        self._epoch = None
        self._clock.stop()
        if self._writer is not None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        async with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    async def feed(self, batch: Batch) -> None:
        """Append and commit what continues the chain; when this returns, it is durable."""
        async with self._lock:
            if batch.epoch != self._epoch or self._writer is None or self.halted:
                return
            started = time.perf_counter()
            self._clock.enter("other")
            self._trail.passed(batch.records)
            try:
                gap = await asyncio.to_thread(self._append, self._writer, batch.records)
            except HALTING as error:
                self._halt(error)
                return
            except StoreError as error:
                end_process(str(error))  # a new start recovers, and tries the disk again
            metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
            metrics.COMMITS.inc()
            self._context.set_durable(self.tp, batch.position)
            self._clock.divide(self._spent)
            self._position = batch.position
            self._clock.wait()
        await self._mind_gap(gap, batch.position)

    def _append(self, writer: PartitionWriter, records: Sequence[ConsumerRecord]) -> Gap | None:
        """Append the records' new blocks in one commit; return a gap that is worth looking through the topic for."""
        gap: Gap | None = None
        acceptor = self._acceptor
        if acceptor is None:
            return None
        started, before, taken = time.perf_counter(), writer.next_block, list[Message]()
        for record in records:
            message = message_of(record)
            verdict = acceptor.offer(message)
            if isinstance(verdict, Gap):
                metrics.GAPS.inc()
                gap = verdict
            elif isinstance(verdict, Taken):
                metrics.DUPLICATES.inc(verdict.dropped)
                if verdict.blocks.entries:
                    writer.append(verdict.blocks, token_offset=record.offset)
                    taken.append(message)
            else:
                metrics.DUPLICATES.inc(verdict.dropped)
        appended = time.perf_counter()
        writer.commit()
        self._spent = {"append": appended - started, "sync": time.perf_counter() - appended}
        metrics.BLOCKS.labels(self._context.stream, "segment").inc(writer.next_block - before)
        self._trainable(taken)
        return gap

    def _trainable(self, messages: Sequence[Message]) -> None:
        """Take note that blocks of these messages are committed now."""
        now, latency = time.time(), metrics.LATENCY_SECONDS.labels(self._context.stream)
        for message in messages:
            self._newest = max(self._newest, message.cursor.last_timestamp)
            latency.observe(max(0.0, now - message.cursor.last_timestamp / 1000))

    async def _mind_gap(self, gap: Gap | None, position: int) -> None:
        """Read on to the end of the topic after a gap, then look through the whole partition again.

        The missing block may have been written again anywhere, above or below. Waits between two looks that found
        nothing, loudly and ever longer.
        """
        if gap is not None and self._missing is None:
            self._missing = gap
            self._look_until = max(position, self._context.end_offset(self.tp))
            self.waiting = f"block {gap.wanted}: the next one on {self.tp.topic}[{self.tp.partition}] is {gap.found}"
            log.warning("a block is missing", reason=self.waiting)
        if self._missing is None:
            self.waiting = None
            return
        if position < self._look_until or self._acceptor is None:
            return
        found_some = self._acceptor.next_block > self._missing.wanted
        self._patience = GAP_SECONDS if found_some else min(2 * self._patience, LONGEST_GAP_SECONDS)
        self._epoch = None
        self._clock.enter("resume")
        if not found_some:
            await asyncio.sleep(self._patience)
        await self._look_again(self._acceptor.next_block)

    async def _look_again(self, wanted: int) -> None:
        """Read from the partition's start; halt if the block lies below all that the topic retains."""
        self._missing = None
        partition = TopicPartition(self.tp.topic, self.tp.partition)
        async with consumer(self._context.settings) as client:
            first, end = (await offsets(client, [partition]))[partition]
            oldest = await _record_at(client, partition, first, end)
        if first and oldest is not None and message_of(oldest).first > wanted:
            self._halt(
                GapError(
                    f"{self.tp.topic}[{self.tp.partition}] no longer holds block {wanted}, its retention passed it: "
                    "copy the segments from another store, or begin a new store"
                )
            )
        elif not self._stopped:
            await self._start(first)

    async def _start(self, offset: int) -> None:
        """Follow the token topic from ``offset``."""
        self._epoch = await self._context.start_partition(self.tp, offset)
        self._position = offset
        self._trail.begin(0)
        self._clock.wait()

    def _halt(self, error: Exception) -> None:
        self.halted = str(error)
        self._epoch = None
        self._clock.enter("halted")
        log.error("partition halted", topic=self.tp.topic, partition=self.tp.partition, reason=self.halted)

    def standing(self) -> Standing:
        """Return where the partition stands, for its gauges."""
        started = self._epoch is not None
        state: State = "running" if started else "resuming"
        return Standing(
            state="halted" if self.halted else "waiting" if self.waiting else state,
            position=self._position if started else None,
            stream=self._context.stream,
            newest_timestamp=self._newest,
            trail=self._trail,
            clock=self._clock,
        )

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people."""
        return {
            "block": self._writer.next_block if self._writer is not None else None,
            "halted": self.halted,
            "waiting": self.waiting,
        }


async def _record_at(client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> Any:
    """Return the first record at or after ``start``; None where there is none before ``end``."""
    async for record in read_range(client, partition, start, end):
        return record
    return None
