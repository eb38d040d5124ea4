"""Partitions of one stream on their way from the token topic into a store, by a consumer of no group."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, DiskError, GapError, MovedError, SourceError
from tokenmill.store import Store

from ...kafka.clients import consumer
from ...kafka.cluster import NO_LEADER, is_connected, leader, update_metadata
from ...kafka.control_topic import Settled
from ...kafka.retry import Backoff
from ...settings import Settings
from ...tasks import together
from ...worker.ownership import FetchedBatch
from ..context import SegmentContext
from ..token_partition import TokenPartition

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
"""... up to this, and anew after as long without an error."""

log = structlog.get_logger(__name__)


class StreamFlow:
    """Appends partitions of a stream to a store, from `run` until that is cancelled."""

    def __init__(self, settings: Settings, store: Store, settled: Settled, numbers: Sequence[int]) -> None:
        """Do nothing yet."""
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
        self._epochs: dict[TopicPartition, int] = {}
        self._failed: asyncio.Future[None] | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of tokens in a block."""
        return self.settled.genesis.recipe.block_bytes

    @property
    def connected(self) -> bool:
        """Whether a connection to a broker is open."""
        return self._client is not None and is_connected(self._client)

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the end offsets that the last fetches told."""
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
        """Return what keeps a partition from going on that time alone does not mend: a halt, or a missing block."""
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
        """Append what comes, and start anew after what a new start gets over; raises only what it does not.

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
            for tp in self.topics:  # nothing is fetched before a partition knows its place
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
        self._epochs[tp] = self._epochs.get(tp, 0) + 1
        self._passed[tp] = self.reached[tp] = offset
        self._client.seek(tp, offset)
        self._client.resume(tp)
        return self._epochs[tp]

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
                await partition.feed(FetchedBatch(tp, records, position, self._epochs[tp]))

    def _require_leader(self, client: AIOKafkaConsumer, tp: TopicPartition) -> None:
        """Check that the log is the one that was looked at: a new leader may have lost its end."""
        now, before = leader(client, tp), self._leaders[tp]
        if before in {None, NO_LEADER}:
            self._leaders[tp] = now
        elif now != before:
            raise MovedError(f"the leader of {tp.topic}[{tp.partition}] changed: its log is looked at again")
