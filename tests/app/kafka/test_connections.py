"""Connections that come to nothing: few attempts, nothing left of them, and no look for metadata after the other."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiokafka.conn
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import BrokerMetadata

from tests.faults.proxy import RESET
from tests.outages import Hands
from tokenmill.app.kafka import connections
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.cluster import client_of
from tokenmill.app.kafka.connections import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    METADATA_PAUSE,
    QUICK_LOOKS,
    ContactProtocol,
    Pauses,
    connect,
    patch_metadata_requests,
    prepare,
)
from tokenmill.app.kafka.fastpath import FrameProtocol
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

ATTEMPTS = 30


class Resetting:
    """Accepts connections and resets them at once, as a proxy does whose backend is away."""

    def __init__(self) -> None:
        """Have seen none."""
        self.port = 0
        self.accepted = 0

    async def serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reset one."""
        self.accepted += 1
        link: socket.socket = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.close()


@asynccontextmanager
async def resetting() -> AsyncIterator[Resetting]:
    """Listen while the block runs."""
    found = Resetting()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


def test_pauses_grow_and_end_with_an_answer() -> None:
    """Of each address by itself; attempts of several clients at one time count as one."""
    hands = Hands()
    pauses = Pauses(hands)
    seen = []
    for _ in range(8):
        pauses.failed("a", 1, "reset")
        pauses.failed("a", 1, "reset")
        seen.append(round(pauses.left("a", 1)[0], 3))
        hands.turn(pauses.left("a", 1)[0])
        assert pauses.left("a", 1)[0] == 0
    assert seen == [FIRST_PAUSE, 0.2, 0.4, 0.8, 1.6, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
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
    """No connection, no buffer of 64 KiB, even if Python never looks for cycles."""
    monkeypatch.setattr(connections, "FIRST_PAUSE", 0.0)
    gc.collect()
    others = alive()  # of other tests
    prepare(AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:1"))
    assert aiokafka.conn.AIOKafkaProtocol in {ContactProtocol, FrameProtocol}
    gc.disable()
    try:
        async with resetting() as proxy:
            for _ in range(ATTEMPTS):
                with pytest.raises((KafkaConnectionError, OSError)):
                    await connect("127.0.0.1", proxy.port, max_idle_ms=540_000)
            assert proxy.accepted == ATTEMPTS
        left = [thing for thing in alive() if all(thing is not other for other in others)]
        assert len(left) <= 2  # of the last attempt, whose callbacks may still be due
        assert sum(len(thing._small) for thing in left if isinstance(thing, FrameProtocol)) == 0
    finally:
        gc.enable()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.slow
async def test_a_client_leaves_a_broker_alone_for_a_moment_that_resets_it() -> None:
    """However often it is asked to connect; alone, aiokafka would try each time. A new client waits for its turn."""
    async with resetting() as proxy:
        owner = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{proxy.port}")
        prepare(owner)
        client = client_of(owner)
        client.cluster._brokers = {1: BrokerMetadata(1, "127.0.0.1", proxy.port, None)}
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
        assert 2 <= proxy.accepted <= sum(moment < ended for moment in due)
        assert asked > 5 * proxy.accepted
        before = proxy.accepted
        with pytest.raises(KafkaConnectionError):
            await client.bootstrap()
        await asyncio.sleep(FIRST_PAUSE)
        assert proxy.accepted == before + 1
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
        patch_metadata_requests(client)
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
    most = QUICK_LOOKS + SECONDS / METADATA_PAUSE + 1
    assert await looks(backing_off=False) > 2 * most  # thousands, on a quiet machine
    assert QUICK_LOOKS <= await looks(backing_off=True) <= most


async def test_a_start_that_is_cancelled_leaves_no_connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it waits for then, as here for the answer in which a broker names the others."""
    opened: list[AIOKafkaConnection] = []

    send = AIOKafkaConnection.send

    def keeping_silent(connection: AIOKafkaConnection, request: Any) -> Any:
        if not isinstance(request, MetadataRequest):
            return send(connection, request)
        opened.append(connection)
        return asyncio.get_running_loop().create_future()

    async def begin() -> None:
        async with consumer(Settings(bootstrap_servers=broker.bootstrap_servers)):
            pytest.fail("no broker has answered")

    monkeypatch.setattr(AIOKafkaConnection, "send", keeping_silent)
    beginning = asyncio.create_task(begin())
    while not opened:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)
    assert opened[0].connected()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert not opened[0].connected()
