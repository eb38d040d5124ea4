"""Partitions of one stream on their way from the token topic into a store, by a consumer of no group; and their lag."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, DiskError, GapError, MovedError, SourceError
from tokenmill.store import EraReader, Store, open_eras

from ...backoff import Backoff
from ...kafka.clients import consumer, offsets
from ...kafka.cluster import NO_LEADER, is_connected, leader, update_metadata
from ...kafka.control_topic import Settled
from ...kafka.token_topic import readable, record_at
from ...settings import Settings
from ...tasks import together
from ...worker.ownership import FetchedBatch
from ..token_partition import SegmentContext, TokenPartition

PASSING: Final = (BrokerError, KafkaError, SourceError, DiskError, OSError)
"""What a new start gets over: it looks at everything again, and goes on with what the store holds."""
POLL_MS: Final = 500
"""How long one poll of a partition waits for records; also how soon a change of its leader is noticed."""
FETCH_WAIT_MS: Final = 500
"""How long a fetch at the end of the log waits for its first byte, as in the workers."""
FETCH_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of one partition in one fetch, as a segment worker has it."""
HALT_SECONDS: Final = 1.0
"""How often it is looked whether the reason of a halt has ended."""
FIRST_PAUSE: Final = 0.5
"""Seconds before a new start; doubled each time ..."""
LONGEST_PAUSE: Final = 10.0
"""... up to this, and from the first one after as long without an error."""

log = structlog.get_logger(__name__)


class StreamFlow:
    """Appends partitions of a stream to a store, from `run` until that is cancelled."""

    def __init__(self, settings: Settings, store: Store, settled: Settled, numbers: Sequence[int]) -> None:
        self.settled = settled
        self.topics: Final = [TopicPartition(settled.stream.tokens_topic, number) for number in numbers]
        self.partitions: dict[TopicPartition, TokenPartition] = {}
        """As they are since the last start."""
        self.reached: dict[TopicPartition, int] = {}
        """Up to where each partition's topic has been read since then, and what it held is durable."""
        self._settings = settings
        self._store = store
        self._client: AIOKafkaConsumer | None = None
        self._leaders: dict[TopicPartition, int | None] = {}
        self._passed: dict[TopicPartition, int] = {}
        self._generations: dict[TopicPartition, int] = {}
        self._failed: asyncio.Future[None] | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of tokens in a block."""
        return self.settled.genesis.recipe.block_bytes

    @property
    def connected(self) -> bool:
        """Whether a broker is connected."""
        return self._client is not None and is_connected(self._client)

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the end offsets that the last fetches brought."""
        if self._client is None:
            return {}
        ends = {tp: self._client.highwater(tp) for tp in self.topics}
        return {tp: end for tp, end in ends.items() if end is not None}

    def has_reached(self, tp: TopicPartition, end: int) -> bool:
        """Return whether all that a topic held before offset ``end`` is durable, or cannot come now (`problem`)."""
        partition = self.partitions.get(tp)
        if partition is None:
            return False
        return self.problem(tp) is not None or (not partition.waiting and self.reached.get(tp, -1) >= end)

    def problem(self, tp: TopicPartition) -> Exception | None:
        """Return what keeps a partition from going on that does not pass with time: a halt, or a missing block."""
        partition = self.partitions.get(tp)
        if partition is None:
            return None
        if partition.waiting and partition.vain_looks:
            return GapError(
                f"{partition.waiting}; the token topic does not hold it now. The next mill worker of the partition "
                "writes it again: start one, or wait"
            )
        return partition.halt

    async def run(self) -> None:
        """Append what comes, and start again after what a new start gets over; raises only what it does not.

        A start locks and recovers each directory, and finds the place by what the store holds: as after a SIGKILL.
        """
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, healthy=LONGEST_PAUSE)
        while True:
            began = time.monotonic()
            try:
                await self._run()
            except PASSING as error:
                log.warning("the stream is taken up again", stream=self.settled.stream.name, reason=str(error))
            finally:
                await self._stop()
            await asyncio.sleep(backoff.next(time.monotonic() - began))

    async def _run(self) -> None:
        self._failed = asyncio.get_running_loop().create_future()
        options = {"max_partition_fetch_bytes": FETCH_BYTES, "fetch_max_wait_ms": FETCH_WAIT_MS}
        async with consumer(self._settings, **options) as client:
            client.assign(self.topics)
            for tp in self.topics:  # nothing is fetched before a partition has its place
                client.pause(tp)
                client.seek(tp, 0)
            await update_metadata(client)  # leaders are noted before anything is read
            self._leaders = {tp: leader(client, tp) for tp in self.topics}
            self._client = client
            self.partitions = {tp: TokenPartition(tp, self._context()) for tp in self.topics}
            await together(
                self._failure(), *(self._follow(client, partition) for partition in self.partitions.values())
            )

    async def _stop(self) -> None:
        self._client = None
        if self._failed is not None and not self._failed.cancel() and not self._failed.cancelled():
            self._failed.exception()  # or nobody would have asked for it
        for partition in self.partitions.values():
            partition.stop()
        for partition in self.partitions.values():
            try:
                await partition.closed()
            except PASSING as error:  # what it could not commit comes again
                log.warning("a partition could not be ended", topic=partition.tp.topic, reason=str(error))
        self.partitions = {}
        self.reached = {}

    def _context(self) -> SegmentContext:
        return SegmentContext(
            settings=self._settings,
            store=self._store,
            stream=self.settled.stream.name,
            recipe=self.settled.genesis.recipe,
            ignored=self.settled.control.ignored,
            start_partition=self._start_partition,
            set_durable=self.reached.__setitem__,
            end_offset=lambda tp: self.ends().get(tp, 0),
            fail=self._fail,
        )

    def _fail(self, error: Exception) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _failure(self) -> None:
        """Raise what a partition failed with; never return."""
        if self._failed is not None:
            await self._failed

    async def _start_partition(self, tp: TopicPartition, offset: int) -> int | None:
        if self._client is None:
            return None
        self._generations[tp] = self._generations.get(tp, 0) + 1
        self._passed[tp] = self.reached[tp] = offset
        self._client.seek(tp, offset)
        self._client.resume(tp)
        return self._generations[tp]

    async def _follow(self, client: AIOKafkaConsumer, partition: TokenPartition) -> None:
        """Resume a partition and feed it; one that halted again, once the reason may have ended."""
        tp = partition.tp
        await partition.resume()
        while True:
            if partition.halt:
                client.pause(tp)
                await asyncio.sleep(HALT_SECONDS)
                if partition.may_go_on():
                    await partition.resume()
                continue
            records: Sequence[Any] = (await client.getmany(tp, timeout_ms=POLL_MS)).get(tp, ())
            self._require_leader(client, tp)
            position = await client.position(tp)
            if records or position > self._passed[tp]:
                self._passed[tp] = position
                await partition.feed(FetchedBatch(tp, records, position, self._generations[tp]))

    def _require_leader(self, client: AIOKafkaConsumer, tp: TopicPartition) -> None:
        """Check that the log is the one that was looked at: a new leader may have lost its end."""
        now, before = leader(client, tp), self._leaders[tp]
        if before in {None, NO_LEADER}:
            self._leaders[tp] = now
        elif now != before:
            raise MovedError(f"the leader of {tp.topic}[{tp.partition}] changed: its log is looked at again")


@dataclass(frozen=True, slots=True)
class MirroredStream:
    """What a mirror has of a stream, and what it lacks; a partition that has not started counts from block 0."""

    stream: str
    blocks: int
    """Blocks that the token topic has and the store lacks."""
    bytes: int
    """Bytes of their tokens."""
    eras: int
    """Eras that the store has and lacks blocks of."""
    stored: int
    """The sum of the numbers of the blocks that each partition wants next."""
    trainable: int
    """Eras whose blocks are all there."""
    stopped_by: tuple[str, ...]
    """Why partitions wait or are halted, if any are."""


class FurthestBlocks:
    """The furthest block of each partition, as its last messages say; read where there is something new."""

    def __init__(self) -> None:
        self.found: dict[TopicPartition, int] = {}
        """The number of the block after the last one on each partition, as far as known."""
        self._ends: dict[TopicPartition, int] = {}

    async def look(self, client: AIOKafkaConsumer, flow: StreamFlow) -> None:
        """Bring what is known of a flow's partitions up to date.

        Only the last message is read, and only where more was written than the flow has read; a writer's late one can
        hide others until the next look. ``client`` is used by nobody else meanwhile.
        """
        for tp, (first, end) in (await offsets(client, flow.topics)).items():
            if first < end != self._ends.get(tp) and flow.reached.get(tp, 0) < end:
                record = await record_at(client, tp, end - 1, end)
                message = None if record is None else readable(record, flow.settled.genesis.recipe.fingerprint)
                if message is not None:
                    self.found[tp] = max(self.found.get(tp, 0), message.end)
                self._ends[tp] = end


class CopyMeasure:
    """Says how far behind a stream's copy is, from what the store and the flows hold; asks no broker."""

    def __init__(self, store: Path, stream: str) -> None:
        """Open the stream's eras; a store has them, possibly none, as soon as it has the stream."""
        self._stream = stream
        self._eras: EraReader = open_eras(store, stream)
        self._blocks: dict[int, int] = {}

    def take(self, flows: list[StreamFlow], heads: Mapping[TopicPartition, int]) -> MirroredStream:
        """Return what the flows of the stream have and lack; a partition that starts again keeps what it had."""
        partitions = {tp: partition for flow in flows for tp, partition in flow.partitions.items()}
        for tp, partition in partitions.items():
            block = partition.status()["block"]
            if block is not None:
                self._blocks[tp.partition] = block
        topics = [tp for flow in flows for tp in flow.topics]
        blocks = sum(max(0, heads.get(tp, 0) - self._blocks.get(tp.partition, 0)) for tp in topics)
        self._eras.refresh()
        trainable = bisect_left(range(self._eras.eras), x=True, key=self._lacks)
        stopped_by = (partition.halted or partition.waiting for partition in partitions.values())
        return MirroredStream(
            stream=self._stream,
            blocks=blocks,
            bytes=blocks * flows[0].block_bytes,
            eras=self._eras.eras - trainable,
            stored=sum(self._blocks.values()),
            trainable=trainable,
            stopped_by=tuple(str(why) for why in stopped_by if why),
        )

    def _lacks(self, era: int) -> bool:
        """Whether blocks of an era are missing; then they are of all later ones."""
        ranges = self._eras.era(era).ranges
        return any(self._blocks.get(number, 0) < part.stop for number, part in enumerate(ranges))
