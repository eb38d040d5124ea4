"""The partitions that a worker owns: taken over, started each in its own time, fed, and given up together."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import structlog
from aiokafka import TopicPartition

from ..telemetry import worker_metrics as metrics
from .ending import end_process, or_end

if TYPE_CHECKING:  # a mirror takes `FetchedBatch` from here, and has no Faust
    from faust.types import TP

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """The records that one fetch brought of one partition, whoever fetched them."""

    tp: TopicPartition
    records: Sequence[Any]
    """In the order of their offsets, `SourceRecord` each, or a `PackedBatch` of them (`app.kafka`); empty
    where the fetch only passed offsets without records."""
    position: int
    """The offset after all that was passed, transaction markers and other gaps included."""
    generation: int
    """What the partition's start returned before these were fetched: what was fetched before a later start is of an
    earlier generation, and nobody takes it."""


class OwnedPartition(Protocol):
    """What a worker does for one partition between its assignment and its revocation."""

    async def resume(self) -> None:
        """Find the place and start, also after a halt; what this raises ends the worker."""
        ...

    def may_go_on(self) -> bool:
        """Return whether the partition halted, and a new `resume` may get further."""
        ...

    async def feed(self, batch: FetchedBatch) -> None:
        """Do what a fetch brought; what this raises ends the worker."""
        ...

    def stop(self) -> None:
        """Write nothing more anywhere."""
        ...


P = TypeVar("P", bound=OwnedPartition)


class Partitions(Generic[P]):
    """What both apps do with partitions (`app.worker.transport`); all in its event loop."""

    def __init__(self, open_partition: "Callable[[TP], P]") -> None:
        """Make partitions with ``open_partition``."""
        self.owned: dict[TP, P] = {}
        self._open = open_partition
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: dict[TP, asyncio.Task[None]] = {}

    async def assigned(self, partitions: "set[TP]") -> None:
        """Own exactly these partitions; each resumes in the background."""
        self.revoked()
        metrics.REBALANCES.inc()
        for tp in sorted(partitions):
            self.owned[tp] = self._open(tp)
            self._begin(tp)
        log.info("partitions assigned", partitions=[f"{tp.topic}[{tp.partition}]" for tp in sorted(partitions)])

    def look_after_halted(self) -> None:
        """Let those that halted resume again, in the background, where the reason may have ended."""
        for tp, partition in self.owned.items():
            if partition.may_go_on():
                self._begin(tp)

    def revoked(self) -> None:
        """Own nothing."""
        for task in self._tasks:
            task.cancel()
        for partition in self.owned.values():
            partition.stop()
        self.owned.clear()
        self._resuming.clear()

    def failed(self, error: BaseException) -> None:
        """End the process: the next start checks everything."""
        end_process("the consumer cannot go on", error=error)

    async def feed_all(self, batches: AsyncIterable[FetchedBatch]) -> None:
        """Hand each batch to its partition, if it is still owned; an error ends the process.

        This is all that an agent's actor does, for one partition. When the partition moves to another worker, Faust
        cancels it in the middle of whatever it does. It ends in order then: Faust would take a cancelled actor for one
        that crashed, start it again, and end the worker at the second in 10 ms. The stream is closed on return: left to
        the garbage collector, it could still be registered for its partition at the next assignment, and Faust ends a
        worker over that.
        """
        stream = cast("AsyncGenerator[FetchedBatch, None]", aiter(batches))
        with suppress(asyncio.CancelledError):
            async with aclosing(stream):
                async for batch in stream:
                    await self.feed(batch)

    async def feed(self, batch: FetchedBatch) -> None:
        """Hand a batch to its partition, if it is still owned; an error ends the process."""
        partition = self.owned.get(batch.tp)
        if partition is not None:
            await or_end(partition.feed(batch))

    async def _resume(self, partition: P) -> None:
        await or_end(partition.resume())  # made here: a task that is cancelled at once would leave it unawaited

    def _begin(self, tp: "TP") -> None:
        before = self._resuming.get(tp)
        if before is not None and not before.done():
            return  # it is still at it
        task = asyncio.create_task(self._resume(self.owned[tp]), name=f"resume {tp.topic}[{tp.partition}]")
        self._resuming[tp] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
