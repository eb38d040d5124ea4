"""The thread in which Faust's consumer runs aiokafka: paused assignments, stamped fetches, watched leaders.

What a seek must not mix, this thread keeps apart: it seeks, and stamps what it fetched, in one turn of its event loop.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import aiokafka
from aiokafka import TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from ..kafka.cluster import NO_LEADER, is_connected, leader
from ..kafka.connections import prepare
from ..kafka.fetched_batches import packed_batches
from . import faust_setup as faust_settings

FETCH_WAIT_MS: Final = 500
"""Longest wait of a fetch for its first byte; Faust fixes 1,500, which a partition that starts would have to wait."""
GATHER_WAIT_MS: Final = 100
"""Longest wait where a fetch waits for more than that: what a block's way into the store may take longer by."""
LOGGER: Final = logging.getLogger("faust.tokenmill")
"""The transport's services log as parts of Faust, so that their starts and stops are as quiet as Faust's own."""


class StampedRecords(dict[Any, Any]):
    """What one fetch brought, by partition, with the generations and positions of all partitions that flow."""

    generations: Mapping[TP, int]
    positions: Mapping[TP, int]


class PausingListener(driver.ConsumerRebalanceListener):
    """Pauses partitions before the fetcher can ask for their offsets (runs in the consumer's thread)."""

    _thread: "ConsumerThread"

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Pause them, and go on as Faust does."""
        assigned = list(assigned)
        self._thread.hold(assigned)
        await super().on_partitions_assigned(assigned)


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread in which aiokafka runs."""

    logger = LOGGER
    _gathers = False
    _share = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.generations: dict[TP, int] = {}
        """How often each partition was started; replaced as a whole, never changed, for it goes along with fetches."""
        self._leaders: dict[TP, int | None] = {}
        self._leaders_before: dict[TP, int | None] = {}
        super().__init__(*args, **kwargs)

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"  # noqa: SLF001 - Faust has no setting for it
        self._gathers = transport.app.gathers
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS  # noqa: SLF001
        consumer._auto_offset_reset = "none"  # noqa: SLF001 - out of range must be an error, never a jump
        consumer._value_deserializer = packed_batches  # noqa: SLF001 - nor for this
        prepare(consumer)
        return consumer

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Pause new partitions at an arbitrary position, so that no committed offset is asked for."""
        consumer = self._ensure_consumer()
        self._share_fetches(consumer, len(partitions))
        self._leaders.clear()
        self._leaders_before.clear()
        for partition in partitions:
            consumer.pause(partition)
            consumer.seek(partition, 0)
            tp = TP(partition.topic, partition.partition)
            self._leaders_before[tp] = self._leader(tp)

    def _share_fetches(self, consumer: aiokafka.AIOKafkaConsumer, partitions: int) -> None:
        """Bound what a fetch brings of each partition; an app that gathers waits until one could bring as much."""
        self._share = faust_settings.fetch_share(partitions)
        consumer._fetcher._max_partition_fetch_bytes = self._share  # noqa: SLF001 - fixed when it starts
        self._gather(consumer, gathers=False)

    def _gather(self, consumer: aiokafka.AIOKafkaConsumer, *, gathers: bool) -> None:
        """Let the next fetches wait for much, or for the first byte: then a quiet topic is seldom asked for."""
        fetcher = consumer._fetcher  # noqa: SLF001 - as above
        fetcher._fetch_min_bytes = self._share if gathers else 1  # noqa: SLF001
        fetcher._fetch_max_wait_ms = GATHER_WAIT_MS if gathers else FETCH_WAIT_MS  # noqa: SLF001

    async def start_at(self, tp: TP, offset: int) -> int | None:
        """Seek and go, with no await in between; return the new generation, None if the partition is no longer ours."""
        consumer = self._ensure_consumer()
        partition = TopicPartition(tp.topic, tp.partition)
        if partition not in consumer.assignment():
            return None
        self.generations = {**self.generations, tp: self.generations.get(tp, 0) + 1}
        consumer.seek(partition, offset)
        consumer.resume(partition)
        # what the app has read meanwhile was the log of the leader at the assignment: a later one may have lost it
        before = self._leaders_before.get(tp)
        self._leaders.setdefault(tp, self._leader(tp) if before in {None, NO_LEADER} else before)
        return self.generations[tp]

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> StampedRecords:
        records = StampedRecords(await super()._fetch_records(*args, **kwargs))
        records.generations = self.generations
        records.positions = self._positions()
        if self._gathers:
            self._gather(self._ensure_consumer(), gathers=bool(records))
        for tp, before in self._leaders.items():
            if self._leader(tp) != before:
                raise LeaderChangedError(f"the leader of {tp.topic}[{tp.partition}] changed from {before}")
        return records

    def _positions(self) -> dict[TP, int]:
        """Return the positions of the started partitions, as the last fetch left them."""
        subscription = self._ensure_consumer()._subscription.subscription  # noqa: SLF001 - the public call waits
        assignment = subscription.assignment if subscription is not None else None
        if assignment is None:
            return {}
        states = {tp: assignment.state_value(TopicPartition(tp.topic, tp.partition)) for tp in self._leaders}
        return {tp: state.position for tp, state in states.items() if state is not None and state.has_valid_position}

    def _leader(self, tp: TP) -> int | None:
        return leader(self._ensure_consumer(), TopicPartition(tp.topic, tp.partition))

    def connected(self) -> bool:
        """Return whether a connection to a broker is open."""
        return self._consumer is not None and is_connected(self._consumer)

    def member(self) -> str:
        """Return our name in the consumer group; empty while we are no member."""
        coordinator = self._consumer._coordinator if self._consumer is not None else None  # noqa: SLF001 - nowhere else
        return coordinator.member_id if coordinator is not None else ""

    def ends_now(self) -> dict[TP, tuple[int, int]]:
        """Return the known ends of the assigned partitions, without asking anyone; as `BatchConsumer.ends`."""
        consumer = self._ensure_consumer()
        known = {tp: (consumer.highwater(tp), consumer.last_stable_offset(tp)) for tp in consumer.assignment()}
        return {
            TP(*tp): (end, end if stable is None else stable) for tp, (end, stable) in known.items() if end is not None
        }


class LeaderChangedError(Exception):
    """A partition has another leader than when it was started: what it holds must be checked again."""
