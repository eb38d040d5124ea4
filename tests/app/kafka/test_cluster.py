"""What aiokafka knows of cluster and connections is asked in one place, and a change of it is noticed."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiokafka.client
import aiokafka.conn
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol, create_conn
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    RequestTimedOutError,
)
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import BrokerMetadata

from tests.app.conftest import until
from tests.conftest import TopicFactory
from tests.faults.proxy import RESET
from tests.outages import Hands
from tokenmill.app.kafka import cluster
from tokenmill.app.kafka.clients import admin, consumer, offsets, producer
from tokenmill.app.kafka.cluster import FIRST_PAUSE, QUICK_LOOKS, client_of, partitions_of, prepare, update_metadata
from tokenmill.app.kafka.fastpath import FrameProtocol
from tokenmill.app.settings import Settings

ALONE = ("_conns", "leader_for_partition", "fetch_all_metadata", "force_metadata_update", "_metadata_update")
"""What only `cluster` may say."""


def test_nothing_else_asks_aiokafka_about_cluster_and_connections() -> None:
    """So that a new aiokafka is looked at in one place."""
    own = Path(cluster.__file__)
    found = [path for path in own.parents[1].rglob("*.py") if any(name in path.read_text() for name in ALONE)]
    assert found == [own]


async def test_another_version_of_aiokafka_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first client starts: a hook that is never called would be silent."""
    monkeypatch.setattr(aiokafka.client, "create_conn", create_conn)  # as in a process without clients yet
    monkeypatch.setattr(aiokafka, "__version__", "0.99.0")
    with pytest.raises(ImportError, match=r"^aiokafka 0\.99\.0 is not .*: install 0\.14\.0$"):
        prepare(AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:1"))


async def test_leaders_connections_and_partitions_are_told(settings: Settings, topic: TopicFactory) -> None:
    tp = TopicPartition(name := topic(3), 2)
    async with consumer(settings) as client:
        client.assign([tp])
        await offsets(client, [tp])
        await update_metadata(client)
        assert cluster.is_connected(client)
        assert isinstance(cluster.leader(client, tp), int)
        assert (await cluster.all_metadata(client)).partitions_for_topic(name) == {0, 1, 2}
        assert await partitions_of(client, name) == 3
    assert not cluster.is_connected(client)
    async with producer(settings) as sender:
        await cluster.learn_partition(sender, name, 2)
        await sender.send_and_wait(name, b"x", partition=2)
        before = cluster.leader_and_connection(sender, tp)
        await sender.send_and_wait(name, b"x", partition=2)
        assert cluster.leader_and_connection(sender, tp) == before
        for connection in client_of(sender)._conns.values():
            connection.close()
        await sender.send_and_wait(name, b"x", partition=2)
        assert cluster.leader_and_connection(sender, tp) != before


async def test_a_request_times_out_as_its_connection_goes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another error, as aiokafka has it, would end a consumer's fetching for ever."""
    async with admin(settings) as owner:
        client = client_of(owner)
        await update_metadata(owner)
        (node,) = [one.nodeId for one in client.cluster.brokers()]
        assert await client.ready(node)

        def keeping_silent(*_: object, **__: object) -> Any:
            return asyncio.wait_for(asyncio.get_running_loop().create_future(), 0.1)

        monkeypatch.setattr(AIOKafkaConnection, "send", keeping_silent)
        asked = asyncio.create_task(client.send(node, MetadataRequest([])))
        await asyncio.sleep(0.01)
        gone = [*client._conns.values()]
        client._conns.clear()
        with pytest.raises(RequestTimedOutError):
            await asked
        for connection in gone:
            connection.close()


async def test_a_read_ends_where_fetching_has_ended(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever, and show as one of a topic to which nothing comes; the client is closed as any other."""

    async def read() -> None:
        while True:
            assert await reader.getmany(timeout_ms=500) == {}

    tp = TopicPartition(topic(), 0)
    async with consumer(settings) as reader:
        reader.assign([tp])
        reader.seek(tp, 0)
        assert await reader.getmany(timeout_ms=10) == {}
        monkeypatch.setattr(Fetcher, "_get_actions_per_node", Mock(side_effect=RuntimeError("a fault")))
        with pytest.raises(KafkaError, match="during data retrieval"):
            await asyncio.wait_for(read(), 60)


async def test_a_client_learns_of_no_topic_that_it_does_not_use(settings: Settings, topic: TopicFactory) -> None:
    name = topic()
    async with consumer(settings) as one, producer(settings) as other, admin(settings) as third:
        for owner in (one, other, third):
            await update_metadata(owner)
            await update_metadata(owner)
            known = client_of(owner).cluster
            assert (known.topics(), len(known.brokers())) == (set(), 1)
        assert name in (await cluster.all_metadata(one)).topics()
        assert name in await one.topics()
        assert client_of(one).cluster.topics() == set()


class ScriptedBrokers:
    """Three brokers, of which ``answering`` answers; a client knows ``known`` ones; if none, all after two updates."""

    def __init__(
        self, answering: int | None = None, *, known: int = 3, error: type[KafkaError] = NodeNotReadyError
    ) -> None:
        self.answering, self.known, self.error = answering, known, error
        self.asked: list[int] = []
        self.updates = 0
        self._client = self.cluster = self

    def brokers(self) -> list[Any]:
        return [SimpleNamespace(nodeId=node) for node in range(self.known)]

    async def force_metadata_update(self) -> None:
        self.updates += 1
        self.known = self.known or 3 * (self.updates > 1)

    async def send(self, node: int, _: object) -> Any:
        self.asked.append(node)
        if node != self.answering:
            raise self.error
        topics = [(0, "other", [1]), (0, "grain", [1, 2]), (3, "none", []), (17, "bad name", [])]
        topics += [(5, "moving", []), (29, "secret", [])]
        return SimpleNamespace(topics=[(code, name, False, partitions) for code, name, partitions in topics])


@pytest.mark.parametrize("error", [NodeNotReadyError, CorrelationIdError])
async def test_each_broker_is_asked_for_partitions_until_one_answers(error: type[KafkaError]) -> None:
    for answering in range(3):
        client: Any = ScriptedBrokers(answering, error=error)
        assert await partitions_of(client, "grain") == 2
        assert client.updates == 0
    client = ScriptedBrokers(error=error)
    with pytest.raises(KafkaConnectionError, match=r"of \[0, 1, 2\] answers a metadata request for topic grain"):
        await partitions_of(client, "grain")
    assert sorted(client.asked) == [0, 1, 2]
    client = ScriptedBrokers(1, known=0)  # a controller lists no broker that it has not heard of for some seconds
    assert (await partitions_of(client, "grain"), client.updates) == (2, 2)


async def test_a_topic_has_no_partitions_only_if_brokers_say_that_there_is_none() -> None:
    """One that we may not see, or of which they cannot tell at the moment, is there all the same."""
    client: Any = ScriptedBrokers(1)
    assert [await partitions_of(client, name) for name in ("none", "bad name")] == [0, 0]
    with pytest.raises(errors.TopicAuthorizationFailedError, match="secret"):
        await partitions_of(client, "secret")
    with pytest.raises(errors.LeaderNotAvailableError, match="moving"):
        await partitions_of(client, "moving")


@asynccontextmanager
async def resetting() -> AsyncIterator[tuple[int, list[socket.socket]]]:
    """Reset connections at once, as a proxy does whose backend is away; yield the port, and what was accepted."""
    accepted: list[socket.socket] = []

    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer.get_extra_info("socket"))
        accepted[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.close()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], accepted


def test_pauses_grow_and_end_with_an_answer() -> None:
    hands = Hands()
    pauses = cluster.Pauses(hands)
    seen = []
    for _ in range(8):
        pauses.failed("a", 1, "reset")
        pauses.failed("a", 1, "reset")
        seen.append(round(pauses.left("a", 1)[0], 3))
        hands.turn(pauses.left("a", 1)[0])
        assert pauses.left("a", 1)[0] == 0
    assert seen == [FIRST_PAUSE, 0.2, 0.4, 0.8, 1.6, *[cluster.LONGEST_PAUSE] * 3]
    assert pauses.left("b", 1) == (0.0, "")
    pauses.connected("a", 1)
    pauses.failed("a", 1, "reset")
    assert round(pauses.left("a", 1)[0], 3) == FIRST_PAUSE


def alive() -> list[AIOKafkaConnection | AIOKafkaProtocol]:
    """Return all connections that are held by anything, if only by each other."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), AIOKafkaConnection | AIOKafkaProtocol)]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.slow
@pytest.mark.cases(1)
async def test_connections_that_are_reset_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_PAUSE", 0.0)
    gc.collect()
    others = alive()  # of other tests
    prepare(AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:1"))
    assert aiokafka.conn.AIOKafkaProtocol in {cluster.ContactProtocol, FrameProtocol}
    gc.disable()
    try:
        async with resetting() as (port, accepted):
            for _ in range(30):
                with pytest.raises((KafkaConnectionError, OSError)):
                    await cluster.connect("127.0.0.1", port, max_idle_ms=540_000)
            assert len(accepted) == 30
        left = [thing for thing in alive() if all(thing is not other for other in others)]
        assert len(left) <= 2  # of the last attempt, whose callbacks may still be due
        assert sum(len(thing._small) for thing in left if isinstance(thing, FrameProtocol)) == 0
    finally:
        gc.enable()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.slow
async def test_a_client_leaves_a_broker_alone_for_a_moment_that_resets_it() -> None:
    """However often it is asked to connect; alone, aiokafka would try each time. A new client waits for its turn."""
    async with resetting() as (port, accepted):
        owner = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
        prepare(owner)
        client = client_of(owner)
        client.cluster._brokers = {1: BrokerMetadata(1, "127.0.0.1", port, None)}
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = 0
        while loop.time() - began < 8 * FIRST_PAUSE:
            assert not await client.ready(1)
            asked += 1
            await asyncio.sleep(0)
        ended = loop.time()
        await asyncio.sleep(FIRST_PAUSE)  # the listener has counted the last one
        due = [began + FIRST_PAUSE * (2**number - 1) for number in range(6)]
        before = len(accepted)
        assert 2 <= before <= sum(moment < ended for moment in due)
        assert asked > 5 * before
        with pytest.raises(KafkaConnectionError):
            await client.bootstrap()
        await asyncio.sleep(FIRST_PAUSE)
        assert len(accepted) == before + 1
        await client.close()


SECONDS = 1.0


async def looks(*, backing_off: bool) -> int:
    """Return how often a client that asks again at once looks for metadata within `SECONDS`, where nobody answers."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    client = producer.client
    found = 0

    async def look(*_: object) -> bool:
        nonlocal found
        found += 1
        await asyncio.sleep(0)
        return False

    client._metadata_update = look
    if backing_off:
        cluster.patch_metadata_requests(client)
    synchronizer = asyncio.create_task(client._md_synchronizer())
    end = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end:
        await asyncio.wait([client.force_metadata_update()], timeout=SECONDS)
    synchronizer.cancel()
    await producer.stop()
    return found


@pytest.mark.slow
async def test_metadata_is_not_asked_for_again_at_once_for_ever() -> None:
    """Alone, aiokafka asks as fast as it can; backing off, it asks a few times at once, then after pauses."""
    most = QUICK_LOOKS + SECONDS / cluster.METADATA_PAUSE + 1
    assert await looks(backing_off=False) > 2 * most  # thousands, on a quiet machine
    assert QUICK_LOOKS <= await looks(backing_off=True) <= most


async def test_a_start_that_is_cancelled_leaves_no_connection(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it waits for then, as here for the answer in which a broker names the others."""
    opened: list[AIOKafkaConnection] = []
    send = AIOKafkaConnection.send

    def keeping_silent(connection: AIOKafkaConnection, request: Any) -> Any:
        if not isinstance(request, MetadataRequest):
            return send(connection, request)
        opened.append(connection)
        return asyncio.get_running_loop().create_future()

    async def begin() -> None:
        async with consumer(settings):
            pytest.fail("no broker has answered")

    monkeypatch.setattr(AIOKafkaConnection, "send", keeping_silent)
    beginning = asyncio.create_task(begin())
    await until(lambda: opened, beginning)
    assert opened[0].connected()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert not opened[0].connected()
