"""Whoever asks now and then costs the brokers nothing in between."""

import asyncio
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tokenmill.app.kafka.asking import keep_asking
from tokenmill.app.kafka.clients import offsets, producer, read_range
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

PAUSE_SECONDS = 0.6
"""Longer than several fetches at the end of a log take."""
WAIT_SECONDS = 30


async def test_nothing_is_fetched_between_two_looks(broker: Broker, topic: TopicFactory) -> None:
    """And the next look sees what came meanwhile."""
    settings, partition = Settings(bootstrap_servers=broker.bootstrap_servers), TopicPartition(topic(), 0)
    seen: list[bytes] = []
    fetched: list[int] = []
    looked = asyncio.Event()
    asker: list[AIOKafkaConsumer] = []

    async def ask(client: AIOKafkaConsumer) -> None:
        _watch(client, fetched)
        asker[:] = [client]
        first, end = (await offsets(client, [partition]))[partition]
        records = read_range(client, partition, max(first, len(seen)), end)
        seen.extend([bytes(record.value or b"") async for record in records])
        fetched.append(0)
        looked.set()

    async with producer(settings) as client:
        await client.send_and_wait(partition.topic, b"0", partition=0)
        asking = asyncio.create_task(keep_asking(settings, ask, PAUSE_SECONDS, "no broker"))
        for number in range(1, 4):
            await looked.wait()
            looked.clear()
            async with asyncio.timeout(WAIT_SECONDS):
                while not asker[0].paused():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
            await client.send_and_wait(partition.topic, b"%d" % number, partition=0)
        await looked.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    assert seen == [b"0", b"1", b"2", b"3"]
    *looks, _ = "".join(map(str, fetched)).split("0")
    assert looks
    assert set(looks) == {"1"}, fetched  # what brought the record


async def test_that_no_broker_answers_is_told_elsewhere() -> None:
    """Once for a process, not by all who ask something (`tokenmill.app.broker_contact`)."""

    async def ask(_: AIOKafkaConsumer) -> None:
        """Never be called."""

    settings = Settings(bootstrap_servers="127.0.0.1:1")
    with capture_logs() as lines:
        asking = asyncio.create_task(keep_asking(settings, ask, 0.01, "no broker"))
        await asyncio.sleep(2 * PAUSE_SECONDS)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])
    assert lines == []


def _watch(client: AIOKafkaConsumer, fetched: list[int]) -> None:
    """Note each fetch of a client."""
    fetcher: Any = client._fetcher
    if not hasattr(fetcher, "watched"):
        fetcher.watched = fetcher._proc_fetch_request

        async def watched(*arguments: Any) -> Any:
            fetched.append(1)
            return await fetcher.watched(*arguments)

        fetcher._proc_fetch_request = watched
