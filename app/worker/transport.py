"""Faust's transport, replaced: batches instead of events, and positions that come from the data.

This file and `consumer_thread` are the only ones that touch Faust's private parts, of one version (`require_tested`).

Stock Faust spends about 60 µs on each record, commits what its acknowledgements say, and seeks to what was committed.
Here one event carries all the records that a fetch brought for a partition (about 2.5 µs a record), and:

1. At an assignment every partition is paused before anything is fetched.
2. The app is told (`Partitions.assigned`), finds out where each partition continues (its tail, its store), and calls
   `BatchConsumer.start_partition`: seek, new generation, go, in one step of the consumer's thread.
3. Each list of records is stamped with its partition's generation in that same thread, between the fetch and the
   hand-over, so that nothing that was fetched before a seek is taken for what comes after it.
4. Committed offsets are what the app says is durable (`BatchConsumer.durable`): for people and lag tools, never read.
5. What a fetch cannot get over (out of range, a change of leader) ends the process (`Partitions.failed`): the next
   worker checks everything when it resumes. Nothing jumps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

import aiokafka
import faust
from aiokafka import TopicPartition
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from ..kafka.cluster import leader_and_connection, learn_partition, require_tested
from ..kafka.connections import prepare
from .consumer_thread import LOGGER, ConsumerThread, PausingListener, StampedRecords
from .ownership import FetchedBatch, Partitions

require_tested("faust-streaming", faust.__version__)

POLL_SECONDS: Final = 0.1
"""How long a partition that goes on after back-pressure may wait for the running poll to end."""


class BatchConsumer(driver.Consumer):
    """A Faust consumer that hands an agent one list of records per fetch and partition."""

    logger = LOGGER
    RebalanceListener = PausingListener
    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.durable: dict[TP, int] = {}
        """The offsets to commit, for people: what the app has made durable in each partition."""
        self._passed: dict[TP, int] = {}
        self._pressure: dict[TP, tuple[Callable[[], None], Callable[[], None]]] = {}

    @property
    def handler(self) -> Partitions[Any]:
        """The app's handler."""
        return cast("BatchApp", self.app).handler

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def start_partition(self, tp: TP, offset: int) -> int | None:
        """Let the partition flow from ``offset``.

        Returns the generation with which its records will be stamped, or None when it was revoked meanwhile.
        """
        self._passed[tp] = offset
        generation: int | None = await self._thread.call_thread(self._thread.start_at, tp, offset)
        return generation

    def ends(self) -> dict[TP, tuple[int, int]]:
        """Return what the last fetches told: each end offset, and the offset up to which no transaction is open."""
        return self._thread.ends_now()

    @property
    def connected(self) -> bool:
        """Whether a connection to a broker is open."""
        return self._thread.connected()

    @property
    def member(self) -> str:
        """Our name in the consumer group; empty while we are no member."""
        return self._thread.member()

    async def perform_seek(self) -> None:
        """Hand the new assignment to the app, which starts each partition by itself and in its own time."""
        self.durable.clear()
        await self.handler.assigned({TP(tp.topic, tp.partition) for tp in self.assignment()})

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Stop everything: the protocol is eager, so partitions that stay are started again as well."""
        self.handler.revoked()
        await super().on_partitions_revoked(revoked)

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):  # noqa: SLF001
                if not self.flow_active:
                    await self.can_resume_flow.wait()
                active = self._get_active_partitions()
                if not active:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                records = await self._getmany(active_partitions=active, timeout=POLL_SECONDS)
                if self.flow_active and isinstance(records, StampedRecords):
                    self._deliver(records)
                await asyncio.sleep(0)
        except self.consumer_stopped_errors:
            if not self.transport.app.should_stop:
                raise
        except asyncio.CancelledError:
            if not fetcher._stopped.is_set():  # noqa: SLF001 - a fetcher that is stopped during a rebalance would take
                raise  # this for the rebalance's, and crash the app: its fetcher has no supervisor to start it again
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process must not stand still over it
            self.handler.failed(error)

    def _deliver(self, records: StampedRecords) -> None:
        """Put one event, a `FetchedBatch`, on the queue of each partition's agent."""
        brought = {TP(tp.topic, tp.partition): batch for tp, batch in records.items()}
        for tp in brought.keys() | records.positions.keys():
            position = records.positions.get(tp, 0)
            if tp not in brought and position <= self._passed.get(tp, position):
                continue
            batch = FetchedBatch(tp, brought.get(tp, ()), position, records.generations.get(tp, 0))
            self._passed[tp] = position
            message = ConsumerMessage(
                topic=tp.topic,
                partition=tp.partition,
                offset=position,
                timestamp=0.0,
                timestamp_type=0,
                headers=None,
                key=None,
                value=b"",
                checksum=None,
                tp=tp,
                generation_id=self.app.consumer_generation_id,
            )
            message.tracked = True
            event = self.app.create_event(None, batch, None, message)
            high, drop = self._pressure_callbacks(tp)
            topics: Any = self.app.topics
            for channel in topics._tp_index[tp]:  # noqa: SLF001 - where the conductor would put them
                channel.queue.put_nowait_enhanced(event, on_pressure_high=high, on_pressure_drop=drop)

    def _pressure_callbacks(self, tp: TP) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the same two objects for a partition each time: the queue compares them by identity."""
        if tp not in self._pressure:
            self._pressure[tp] = (partial(self.on_buffer_full, tp), partial(self.on_buffer_drop, tp))
        return self._pressure[tp]

    def ack(self, message: Any) -> bool:
        """Forget the event: acknowledgements decide nothing here."""
        message.acked = True
        return False

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Any:  # noqa: ARG002
        return list(self.durable)

    def _new_offset(self, tp: TP) -> int | None:
        return self.durable.get(tp)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust's check follows single events; the app watches its own progress."""


class DurableProducer(driver.Producer):
    """A producer that the broker acknowledges from all in-sync replicas, without duplicates of its own."""

    logger = LOGGER

    def _new_producer(self, transactional_id: str | None = None) -> aiokafka.AIOKafkaProducer:
        producer = super()._new_producer(transactional_id)
        prepare(producer)
        return producer

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True}

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(await self._ensure_producer().partitions_for(topic))

    def leader(self, tp: TP) -> object:
        """Return what identifies a partition's leader and the connection to it; differs after either changed.

        No log loses anything without one of these: a leader that comes back has cut its connections.
        """
        return leader_and_connection(self._ensure_producer(), TopicPartition(tp.topic, tp.partition))


class AssignedConductor(Conductor):
    """A conductor that forgets the streams of lost partitions by itself, whatever their actors are still doing.

    Faust's ends the worker over a stream that is registered for a partition that is not assigned: one whose actor is
    being stopped by two tasks at once, a rebalance and the end of the worker, of which the second waits for nothing.
    """

    async def on_partitions_assigned(self, assigned: set[TP]) -> None:
        """Know the streams of these partitions, and no others."""
        for stream in list(self):
            if not assigned.issuperset(stream.active_partitions or ()):
                self.discard(stream)
        await super().on_partitions_assigned(assigned)


class BatchTransport(driver.Transport):
    """Faust's aiokafka transport with the three classes above."""

    Conductor = AssignedConductor
    Consumer = BatchConsumer
    Producer = DurableProducer


class BatchApp(faust.App):
    """A Faust app on `BatchTransport`; both fields must be set before it starts."""

    logger = LOGGER
    handler: Partitions[Any]
    prepare: Callable[[], Awaitable[None]]
    """Awaited before anything else of the app starts."""
    gathers: bool = False
    """Whether a fetch waits for as much, or `GATHER_WAIT_MS`: many small fetches cost more than few large ones."""

    async def on_first_start(self) -> None:
        """Prepare; Faust would make directories for tables, of which there are none."""
        await self.prepare()

    async def on_stop(self) -> None:
        """Give up all partitions before the clients go, then stop as Faust does."""
        self.handler.revoked()
        await super().on_stop()

    def _new_transport(self) -> BatchTransport:
        return BatchTransport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> BatchTransport:
        return BatchTransport(self.conf.broker_producer, self)

    def why_not_ready(self, *, prepared: bool) -> str | None:
        """Return why no work can be done now, None if it can; ``prepared``: `prepare` has been awaited."""
        if not prepared:
            return "the worker waits for its topics, its tokenizer, or its streams to be settled"
        connected = isinstance(self._consumer, BatchConsumer) and self._consumer.connected
        return None if connected else "no broker is connected"

    @property
    def member(self) -> str:
        """Our name in the consumer group; empty while we are no member."""
        return self._consumer.member if isinstance(self._consumer, BatchConsumer) else ""

    async def know(self, topic: str, partition: int) -> None:
        """Make the producer learn of a partition that exists, perhaps since a moment ago: it would refuse to send."""
        await learn_partition(cast("DurableProducer", self.producer)._ensure_producer(), topic, partition)  # noqa: SLF001

    @property
    def batch_consumer(self) -> BatchConsumer:
        """The running consumer."""
        consumer = self.consumer
        if not isinstance(consumer, BatchConsumer):
            raise TypeError(f"the app runs on {type(consumer).__name__}, not on BatchConsumer")
        return consumer
