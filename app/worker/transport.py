"""Faust's transport, replaced: batches instead of events, and positions that come from the data; who gets the batches.

This is the only file that touches Faust's private parts, of one version (`require_tested`).

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
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import aiokafka
import faust
import structlog
from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from ..kafka.clients import FETCHER_TURN_MS, METADATA_MAX_AGE_MS, RECORD_OVERHEAD_BYTES
from ..kafka.cluster import (
    NO_LEADER,
    is_connected,
    leader,
    leader_and_connection,
    learn_partition,
    prepare,
    require_tested,
)
from ..kafka.fetched_batches import FetchedBatch, packed_batches
from ..kafka.security import login_tokens, password, refused_time, ssl_context
from ..kafka.topics import JOINED_BYTES, needed_topics
from ..settings import ConnectionSettings, Settings
from ..telemetry import worker_metrics as metrics
from .ending import end_process, or_end

require_tested("faust-streaming", faust.__version__)

POLL_SECONDS: Final = 0.1
"""How long a partition that goes on after back-pressure may wait for the running poll to end."""
QUIET_POLL_SECONDS: Final = 1.0
"""The same where none is held back: each poll crosses threads, which would be most of what an idle worker does."""
FETCH_WAIT_MS: Final = 1000
"""Longest wait of a fetch for its first byte; a partition that starts may have to wait as long, and an idle worker does
what half a second would cost twice as often. Faust fixes 1,500."""
GATHER_WAIT_MS: Final = 100
"""Longest wait where a fetch waits for more than that: what a block's way into the store may take longer by."""
log = structlog.get_logger(__name__)
LOGGER: Final = logging.getLogger("faust.tokenmill")
"""The transport's services log as parts of Faust, so that their starts and stops are as quiet as Faust's own."""
FETCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one partition in one fetch (compressed, as in the log). Smaller ones cost more for what is done
once a fetch, larger ones for memory that the processor's caches do not hold: at 1 and 8 MiB, a sixth more."""
FETCHED_BYTES: Final = 8 * FETCH_BYTES
"""Most bytes of all partitions of a worker in one fetch, of which each gets its share. Bounds memory, with queues."""
LEAST_FETCH_BYTES: Final = 1280 * 1024
"""A share is no smaller: a message of the usual size, and its header. Kafka gives what is larger all the same, but of
one partition in a fetch."""
QUEUED_BATCHES: Final = 3
"""Size of an agent's queue, in batches; its high-water mark is two. Bounds memory with the size of a fetch."""
NEVER_SECONDS: Final = 10 * 86400.0
"""Faust lets a worker leave its group when its records are not asked for so long, and never lets it return."""
REQUEST_SECONDS: Final = 10.0
"""Shortest time after which an unanswered request is given up. A connection that says nothing any more is noticed by
that alone, and Faust's 90 s would let a worker stand for as long. Twice the session time-out where that is more: the
brokers hold a member's request to join for as long as one session."""


def fetch_share(partitions: int) -> int:
    """Return the most bytes that a fetch brings of each of ``partitions``."""
    return max(LEAST_FETCH_BYTES, min(FETCH_BYTES, FETCHED_BYTES // max(1, partitions)))


def faust_options(settings: Settings) -> dict[str, Any]:
    """Return the keyword arguments of `faust.App`; raises SettingsError where a file of a setting cannot be used."""
    brokers = ";".join(f"aiokafka://{address}" for address in settings.bootstrap_servers.split(","))
    request_seconds = max(REQUEST_SECONDS, 2 * settings.session_timeout)
    largest = max(JOINED_BYTES, *(topic.max_message_bytes for topic in needed_topics(settings))) + RECORD_OVERHEAD_BYTES
    return {
        "broker": brokers,
        **_security(settings),
        "key_serializer": "raw",
        "value_serializer": "raw",
        "store": "memory://",
        "datadir": Path(os.devnull) / "faust",  # for tables: there are none, and nobody can put any below a device
        "web_enabled": False,  # Faust's page says OK whatever happens
        "topic_disable_leader": True,  # no table, so no leader topic
        "topic_allow_declare": False,  # topics are made by `tokenmill topics`, with the settings that they need
        "table_standby_replicas": 0,  # plain round-robin assignment
        "stream_wait_empty": False,  # a rebalance does not wait for events: positions come from the data
        "stream_buffer_maxsize": QUEUED_BATCHES,
        "consumer_max_fetch_size": FETCH_BYTES,  # until partitions are assigned
        "consumer_auto_offset_reset": "earliest",  # never used: the transport sets "none"
        "consumer_metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "producer_metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "producer_linger": 0,  # one message is in flight: waiting for a second one would only delay it
        "producer_max_request_size": largest,
        "producer_request_timeout": request_seconds,
        "broker_request_timeout": request_seconds,
        "broker_session_timeout": settings.session_timeout,
        "broker_rebalance_timeout": settings.session_timeout,
        "broker_heartbeat_interval": settings.session_timeout / 10,
        "broker_max_poll_interval": NEVER_SECONDS,
        "broker_commit_interval": 3.0,  # only others read what is committed: a worker goes on from what is durable
        "broker_check_crcs": True,
    }


def _security(settings: ConnectionSettings) -> Mapping[str, Any]:
    context = ssl_context(settings) if settings.encrypts else None
    if settings.sasl_mechanism == "OAUTHBEARER":
        return {"broker_credentials": OAuthCredentials(oauth_cb=login_tokens(settings), ssl_context=context)}
    if settings.logs_in:
        credentials = SASLCredentials(
            username=settings.sasl_username,
            password=password(settings, "sasl"),
            mechanism=settings.sasl_mechanism,
            ssl_context=context,
        )
        return {"broker_credentials": credentials}
    return {"broker_credentials": SSLCredentials(context)} if context else {}


class OwnedPartition(Protocol):
    """What a worker does for one partition between its assignment and its revocation."""

    async def resume(self) -> None:
        """Find the place and start, also after a halt; what this raises ends the worker."""

    def may_go_on(self) -> bool:
        """Return whether the partition halted, and a new `resume` may get further."""

    async def feed(self, batch: FetchedBatch) -> None:
        """Do what a fetch brought; what this raises ends the worker."""

    def stop(self) -> None:
        """Write nothing more anywhere."""


P = TypeVar("P", bound=OwnedPartition)


class Partitions(Generic[P]):
    """What both apps do with partitions; all in the event loop of the app."""

    def __init__(self, open_partition: Callable[[TP], P]) -> None:
        self.owned: dict[TP, P] = {}
        self._open = open_partition
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: dict[TP, asyncio.Task[None]] = {}

    async def assigned(self, partitions: set[TP]) -> None:
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
        """Hand each batch to its partition, if it is still owned; an error ends the process. All that an actor does.

        When the partition moves to another worker, Faust cancels it in the middle of whatever it does. It ends in order
        then, and closes the stream: Faust would start a cancelled actor again, and end the worker at the second in 10
        ms, or over a stream that the garbage collector has not closed before the next assignment.
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

    def _begin(self, tp: TP) -> None:
        before = self._resuming.get(tp)
        if before is not None and not before.done():
            return  # it is still at it
        task = asyncio.create_task(self._resume(self.owned[tp]), name=f"resume {tp.topic}[{tp.partition}]")
        self._resuming[tp] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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
        consumer._consumer_timeout = FETCHER_TURN_MS / 1000  # noqa: SLF001
        consumer._auto_offset_reset = "none"  # noqa: SLF001 - out of range must be an error, never a jump
        consumer._value_deserializer = packed_batches  # noqa: SLF001 - nor for this
        prepare(consumer)
        return consumer

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Pause new partitions at an arbitrary position, so that no committed offset is asked for."""
        consumer = self._ensure_consumer()
        self._share = fetch_share(len(partitions))
        consumer._fetcher._max_partition_fetch_bytes = self._share  # noqa: SLF001 - fixed when it starts
        self._gather(consumer, gathers=False)
        self._leaders.clear()
        self._leaders_before.clear()
        for partition in partitions:
            consumer.pause(partition)
            consumer.seek(partition, 0)
            self._leaders_before[TP(*partition)] = leader(consumer, partition)

    def _gather(self, consumer: aiokafka.AIOKafkaConsumer, *, gathers: bool) -> None:
        """Let the next fetches wait for a partition's share, so that a quiet topic is seldom asked; or for one byte."""
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
        """Let the partition flow from ``offset``; return the generation of its records, None when it was revoked."""
        self._passed[tp] = offset
        generation: int | None = await self._thread.call_thread(self._thread.start_at, tp, offset)
        return generation

    def ends(self) -> dict[TP, tuple[int, int]]:
        """Return what the last fetches told: each end offset, and the offset up to which no transaction is open."""
        return self._thread.ends_now()

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
                seconds = POLL_SECONDS if self._buffered_partitions else QUIET_POLL_SECONDS
                records = await self._getmany(active_partitions=active, timeout=seconds)
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
        brought = {TP(tp.topic, tp.partition): batch for tp, batch in records.items()}
        for tp in brought.keys() | records.positions.keys():
            position = records.positions.get(tp, 0)
            if tp not in brought and position <= self._passed.get(tp, position):
                continue
            batch = FetchedBatch(tp, brought.get(tp, ()), position, records.generations.get(tp, 0))
            self._passed[tp] = position
            generation, nothing = self.app.consumer_generation_id, (0.0, 0, None, None, b"", None)
            message = ConsumerMessage(tp.topic, tp.partition, position, *nothing, tp=tp, generation_id=generation)
            message.tracked = True
            event = self.app.create_event(None, batch, None, message)
            # the same two objects for a partition each time: the queue compares them by identity
            both = (partial(self.on_buffer_full, tp), partial(self.on_buffer_drop, tp))
            high, drop = self._pressure.setdefault(tp, both)
            topics: Any = self.app.topics
            for channel in topics._tp_index[tp]:  # noqa: SLF001 - where the conductor would put them
                channel.queue.put_nowait_enhanced(event, on_pressure_high=high, on_pressure_drop=drop)

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


class AssignedConductor(Conductor):
    """A conductor that forgets the streams of lost partitions by itself, whatever their actors are still doing.

    Faust's ends the worker over a stream of a partition that is not assigned: one whose actor is being stopped by two
    tasks at once, a rebalance and the end of the worker, of which the second waits for nothing.
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
        thread = self._reading
        return None if thread is not None and thread.connected() else "no broker is connected"

    @property
    def member(self) -> str:
        """Our name in the consumer group; empty while we are no member."""
        return self._reading.member() if self._reading is not None else ""

    @property
    def _reading(self) -> ConsumerThread | None:
        return self._consumer._thread if isinstance(self._consumer, BatchConsumer) else None  # noqa: SLF001

    async def start_partition(self, tp: TP, offset: int) -> int | None:
        """Let a partition flow from ``offset``; returns as `BatchConsumer.start_partition`."""
        return await self.batch_consumer.start_partition(tp, offset)

    def set_durable(self, tp: TP, offset: int) -> None:
        """Take note of the offset to commit for a partition."""
        self.batch_consumer.durable[tp] = offset

    async def send_record(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        """Return a record's offset once all in-sync replicas have it.

        Raises ClockError where the brokers do not take records of our time, NotReady where the producer has ended.
        """
        try:
            metadata = await self.producer.send_and_wait(
                topic, key=key, value=value, partition=partition, timestamp=None, headers=list(headers)
            )
        except InvalidTimestampError as error:
            raise refused_time(topic) from error
        return int(metadata.offset)

    async def partitions_of(self, topic: str) -> int:
        """Return how many partitions a topic has that is sent to."""
        return len(await self._sender.partitions_for(topic))

    def leader(self, tp: TP) -> object:
        """Return what identifies a partition's leader and connection: no log loses anything without a change of one."""
        return leader_and_connection(self._sender, TopicPartition(tp.topic, tp.partition))

    @property
    def _sender(self) -> aiokafka.AIOKafkaProducer:
        return cast("DurableProducer", self.producer)._ensure_producer()  # noqa: SLF001

    async def know(self, topic: str, partition: int) -> None:
        """Make the producer learn of a partition that exists, perhaps since a moment ago: it would refuse to send."""
        await learn_partition(self._sender, topic, partition)

    @property
    def batch_consumer(self) -> BatchConsumer:
        """The running consumer."""
        consumer = self.consumer
        if not isinstance(consumer, BatchConsumer):
            raise TypeError(f"the app runs on {type(consumer).__name__}, not on BatchConsumer")
        return consumer
