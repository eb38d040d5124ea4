"""What aiokafka knows of the cluster and its connections, and what it lacks while brokers are away.

Nothing else here asks its private attributes about these. It lacks nine things, with or without the fast path:

1. It connects again at once, several times a second for each client of a process. Where connections are accepted and
   reset, as by a proxy whose brokers are away, each costs two sockets, and memory: the error holds frames, these the
   connection with its buffer, and the connection the error, until a garbage collection, which is rare here
   (`app.processes`). So `connect` pauses, and frees what the error holds.
2. It does not say when a broker answered: `ContactProtocol` does (`app.broker_contact`).
3. It asks for metadata again at once when it got none: a producer with something to send does so thousands of times a
   second (`aiokafka.producer.sender`, where it waits for unknown leaders).
4. It asks again on the same connection when no answer came in time, though it closes one on which any other request was
   not answered. If that is dead without a word (a router that forgot it), a client waits for as long as TCP tries: a
   quarter of an hour.
5. A client without topics requests the metadata of all topics at each refresh; with some thousands of partitions that
   takes a tenth of a core, and as much of the broker's. `patch_metadata_requests` lets it request those of none.
6. It cannot read all that brokers take: `app.kafka.fetched_batches` does.
7. A client whose start is cancelled forgets the connection by which it asked for the brokers: `start` closes it.
8. A request whose time runs out as its connection goes, as on a busy host whose broker is away, ends in a KeyError.
   That ends a consumer's fetching, for ever and in silence; `patch_requests` makes it what it is.
9. Whatever else ends a consumer's fetching is logged, and its reads wait for ever: `waiter_while_fetching` ends them.
"""

import asyncio
import random
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeAlias

import aiokafka.client
import aiokafka.conn
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol, CloseReason, create_conn
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, Fetcher
from aiokafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from ..broker_contact import CONTACT
from ..tasks import Backoff
from .fetched_batches import read_as_brokers_do

NO_LEADER: Final = -1
NO_SUCH_TOPIC: Final = frozenset({UnknownTopicOrPartitionError.errno, InvalidTopicError.errno})
"""What brokers answer for a name that no topic has, or can have."""

UNLISTED_SECONDS: Final = 5.0
"""For so long a cluster may list no broker: a busy one is listed again once its controller has heard of it."""

Owner: TypeAlias = AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient
"""Each has one `AIOKafkaClient`, which holds the connections."""
TESTED: Final = {"faust-streaming": "0.15.3", "aiokafka": "0.14.0"}
"""The versions whose private parts the service uses, as pyproject.toml pins them. Tests hold each use of a part."""


def require_tested(library: str, installed: str) -> None:
    """Check that a library has the version that is used here: what another one calls otherwise would be silent."""
    if installed != TESTED[library]:
        raise ImportError(
            f"{library} {installed} is not the version that this was written for: install {TESTED[library]}"
        )


def client_of(owner: Owner) -> AIOKafkaClient:
    """Return the client that holds the connections of a producer, a consumer or an admin client."""
    return owner.client if isinstance(owner, AIOKafkaProducer) else owner._client  # noqa: SLF001 - see above


def is_connected(owner: Owner) -> bool:
    """Return whether a connection to a broker is open."""
    return any(connection.connected() for connection in list(client_of(owner)._conns.values()))  # noqa: SLF001


def leader(owner: Owner, tp: TopicPartition) -> int | None:
    """Return the broker that leads a partition; `NO_LEADER` or None where none is known."""
    found: int | None = client_of(owner).cluster.leader_for_partition(tp)
    return found


def leader_and_connection(owner: Owner, tp: TopicPartition) -> object:
    """Return what identifies a partition's leader and the connection to it; differs after either changed."""
    client = client_of(owner)
    node = client.cluster.leader_for_partition(tp)
    return node, client._conns.get((node, ConnectionGroup.DEFAULT))  # noqa: SLF001


async def all_metadata(owner: Owner) -> ClusterMetadata:
    """Return the metadata of all topics, in one request: a client knows only the topics that it uses."""
    return await client_of(owner).fetch_all_metadata()


async def partitions_of(owner: Owner, topic: str) -> int:
    """Return how many partitions a topic has; of it alone: what a cluster says of all its topics may be megabytes."""
    client = client_of(owner)
    request = MetadataRequest([topic], allow_auto_topic_creation=False)
    until = time.monotonic() + UNLISTED_SECONDS
    while not client.cluster.brokers() and time.monotonic() < until:
        await client.force_metadata_update()
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    for node in random.sample(nodes, len(nodes)):
        try:
            answer = await client.send(node, request)
        except KafkaError:  # whatever is wrong with this broker or the connection to it: another one may answer
            continue
        for error, name, *_, partitions in answer.topics:
            if name == topic and error not in NO_SUCH_TOPIC:
                if error:
                    raise for_code(error)(topic)
                return len(partitions)
        return 0
    raise KafkaConnectionError(f"no broker of {nodes} answers a metadata request for topic {topic}")


async def ends_of(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return each partition's end, and where the first open transaction begins; it has the consumer for itself."""
    fetcher, found = consumer._fetcher, []  # noqa: SLF001 - aiokafka asks as its consumer reads, in one way only
    before = fetcher._isolation_level  # noqa: SLF001
    try:
        for level in (READ_UNCOMMITTED, READ_COMMITTED):
            fetcher._isolation_level = level  # noqa: SLF001
            found.append(await consumer.end_offsets(partitions))
    finally:
        fetcher._isolation_level = before  # noqa: SLF001
    ends, stable = found
    return {tp: (max(ends[tp], stable[tp]), stable[tp]) for tp in partitions}


async def update_metadata(owner: Owner) -> None:
    """Ask for the metadata of the topics that a client uses; they are known on return, if a broker answered."""
    await client_of(owner).force_metadata_update()


async def learn_partition(producer: AIOKafkaProducer, topic: str, partition: int) -> None:
    """Return when a producer knows a partition that exists, perhaps since a moment ago; it sends to no other."""
    client = client_of(producer)
    await client.add_topic(topic)
    while partition not in (client.cluster.partitions_for_topic(topic) or ()):
        await client.force_metadata_update()


FIRST_PAUSE: Final = 0.1
"""Seconds between the first attempt that failed at an address and the next; doubled each time ..."""
LONGEST_PAUSE: Final = 2.0
"""... up to this: a broker that is back is noticed soon."""
QUICK_LOOKS: Final = 5
"""Requests for metadata that may follow each other at once: a client that starts needs two or three."""
METADATA_PAUSE: Final = 0.1
"""Seconds that each then waits, as aiokafka's other requests do between two tries (retry_backoff_ms)."""


class FailedAttempts(NamedTuple):
    """Attempts at one address, of which the last failed."""

    backoff: Backoff
    until: float
    """No attempt is made before this moment of the clock, in seconds."""
    reason: str


class Pauses:
    """Which addresses are left alone for the moment; of all clients of a process together, in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[tuple[str, int], FailedAttempts] = {}

    def left(self, host: str, port: int) -> tuple[float, str]:
        """Return for how many seconds an address is still left alone, and why; 0 where it may be tried."""
        failed = self._failed.get((host, port))
        return (max(0.0, failed.until - self._clock()), failed.reason) if failed is not None else (0.0, "")

    def failed(self, host: str, port: int, reason: str) -> None:
        """Note that an attempt failed. One that began before the last pause did makes it no longer."""
        before = self._failed.get((host, port))
        if before is not None and before.until > self._clock():
            return
        backoff = before.backoff if before is not None else Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._failed[host, port] = FailedAttempts(backoff, self._clock() + backoff.next(), reason)

    def connected(self, host: str, port: int) -> None:
        """Note that a broker has answered there."""
        self._failed.pop((host, port), None)


PAUSES: Final = Pauses()

_OPENED: Final = ContextVar[list[AIOKafkaConnection] | None]("opened at the settings' addresses", default=None)
"""By the start of a client, in this task."""


async def connect(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    """Return a connection on which a broker has answered; used in place of aiokafka's ``create_conn``."""
    pause, reason = PAUSES.left(host, port)
    if pause and options.get("on_close") is not None:  # it has several brokers, and may reach another one
        raise KafkaConnectionError(f"{host}:{port} is not tried for {pause:.1f} s: {reason}")
    await asyncio.sleep(pause)
    named, address, began = options.get("on_close") is not None, f"{host}:{port}", time.monotonic()
    if named:  # by a broker's answer, not by the settings
        CONTACT.connects(address)
    try:
        connection = await create_conn(host, port, **options)
    except (Exception, asyncio.CancelledError) as error:
        reason = str(error) or f"no answer in {time.monotonic() - began:.0f} s"
        if named:
            CONTACT.refused(address, reason)
        if not isinstance(error, asyncio.CancelledError):
            PAUSES.failed(host, port, reason)
            release(error)
        raise
    PAUSES.connected(host, port)
    CONTACT.answered(address)
    if not named and (opened := _OPENED.get()) is not None:
        opened.append(connection)
    return connection


async def start(owner: Owner) -> None:
    """Start a client as its own ``start`` does; what its start opened is closed where that ends in an error."""
    opened: list[AIOKafkaConnection] = []
    before = _OPENED.set(opened)
    try:
        await owner.start()
    except BaseException:
        for connection in opened:
            connection.close()
        raise
    finally:
        _OPENED.reset(before)


def release(error: BaseException) -> None:
    """Let an error, and those that caused it, hold nothing of the places where they were raised."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


class ContactProtocol(AIOKafkaProtocol):  # type: ignore[misc]  # untyped there
    """aiokafka's protocol; notes when bytes of an answer arrive."""

    def data_received(self, data: bytes) -> None:
        """Note it, and take them as aiokafka does."""
        CONTACT.heard()
        super().data_received(data)


def prepare(owner: Owner) -> None:
    """Give a client that has not started what aiokafka lacks (1, 2, 6, 9 to the process); call it for every client."""
    if aiokafka.client.create_conn is not connect:
        require_tested("aiokafka", aiokafka.__version__)
        aiokafka.client.create_conn = connect
    if aiokafka.conn.AIOKafkaProtocol is AIOKafkaProtocol:  # else it is the fast path's, which notes answers as well
        aiokafka.conn.AIOKafkaProtocol = ContactProtocol
    Fetcher._create_fetch_waiter = waiter_while_fetching  # noqa: SLF001 - a read without a record waits for it
    read_as_brokers_do()
    patch_metadata_requests(client_of(owner))
    patch_requests(client_of(owner))


_create_waiter = Fetcher._create_fetch_waiter  # noqa: SLF001


def waiter_while_fetching(fetcher: Fetcher) -> "asyncio.Future[None]":
    """Return what a read waits for; it has failed, once, where the fetching has: point 9 above."""
    waiter: asyncio.Future[None] = _create_waiter(fetcher)
    task = fetcher.error_future
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        waiter.set_exception(error)
        fetcher._fetch_task = asyncio.create_task(asyncio.sleep(0))  # noqa: SLF001 - closing waits for it, and goes on
    return waiter


def patch_requests(client: AIOKafkaClient) -> None:
    """Let a request time out whose connection is gone by then: point 8 above."""
    send = client.send

    async def send_or_time_out(node: int, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT) -> Any:
        try:
            return await send(node, request, group=group)
        except KeyError as error:
            raise RequestTimedOutError from error

    client.send = send_or_time_out


def patch_metadata_requests(client: AIOKafkaClient) -> None:
    """Change how a client requests metadata: points 3 to 5 above."""
    ask = client._metadata_update  # noqa: SLF001 - aiokafka has no setting for it, as for no topics below
    loop = asyncio.get_running_loop()
    ended, quick = -METADATA_PAUSE, 0

    async def ask_after_a_pause(cluster: ClusterMetadata, topics: Collection[str] | None) -> bool:
        nonlocal ended, quick
        quick = quick + 1 if loop.time() - ended < METADATA_PAUSE else 0
        if quick >= QUICK_LOOKS:
            await asyncio.sleep(METADATA_PAUSE)
            quick = QUICK_LOOKS - 1
        # None means all topics. aiokafka tests the truth of `topics`: an empty set would request all topics, too. An
        # empty iterator is true, and becomes an empty list. A consumer of a pattern would need all: no client of ours
        # is one.
        found: bool = await ask(cluster, iter(()) if topics is not None and not topics else topics)
        ended = loop.time()
        if not found:
            for connection in list(client._conns.values()):  # noqa: SLF001
                # a request that is not waited for any more: its time ran out
                if any(answer.cancelled() for _, _, answer in connection._requests):  # noqa: SLF001
                    connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        return found

    client._metadata_update = ask_after_a_pause  # noqa: SLF001
