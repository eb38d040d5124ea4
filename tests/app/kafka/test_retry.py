"""Trying again: as long as the settings say, aloud, and only for what may come."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tests.outages import Hands
from tokenmill.app.kafka import clients as module
from tokenmill.app.kafka import cluster
from tokenmill.app.kafka.clients import QUIET, ask_repeatedly, offsets, producer, read_range, retry
from tokenmill.app.kafka.cluster import Pauses
from tokenmill.app.kafka.topics import ensure_topics, partition_count, require_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.errors import BrokerError, MissingTopicError, SettingsError

PATIENT = Settings(bootstrap_servers="127.0.0.1:1", wait_seconds=30)


async def test_what_comes_in_time_is_waited_for_aloud() -> None:
    tries = itertools.count(1)

    async def look() -> int:
        number = next(tries)
        if number == 1:
            raise BrokerError("no broker answers at kafka:9092")
        if number == 2:
            raise MissingTopicError("topic raw-text does not exist")
        return number

    with capture_logs() as lines:
        assert await retry(PATIENT, look) == 3
    assert [line["reason"] for line in lines] == ["no broker answers at kafka:9092", "topic raw-text does not exist"]
    assert {line["log_level"] for line in lines} == {"warning"}


async def test_without_waiting_the_first_try_decides() -> None:
    with capture_logs() as lines, pytest.raises(BrokerError, match="no broker answers"):
        await partition_count(PATIENT.model_copy(update={"wait_seconds": 0.0}), "raw-text")
    assert not lines


async def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PAUSES", Pauses())  # other tests have tried there
    with capture_logs() as lines, pytest.raises(BrokerError, match="no broker answers"):
        await ensure_topics(PATIENT.model_copy(update={"wait_seconds": 0.6}), partitions=1)
    assert len(lines) == 1


async def test_a_long_wait_is_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is tried: a container may wait for hours."""
    hands = Hands()
    tries: list[float] = []

    async def look() -> None:
        tries.append(hands.now)
        raise BrokerError("no broker answers at kafka:9092")

    async def sleep(seconds: float) -> None:
        hands.turn(seconds)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: hands, sleep=sleep))
    with capture_logs() as lines, pytest.raises(BrokerError):
        await retry(PATIENT.model_copy(update={"wait_seconds": 200.0}), look)
    assert len(tries) > 40
    assert len(lines) == 4


async def test_what_waiting_does_not_mend_is_told_at_once() -> None:
    async def look() -> None:
        raise SettingsError("no tokenizer is set")

    with capture_logs() as lines, pytest.raises(SettingsError):
        await retry(PATIENT, look)
    assert not lines


async def test_a_service_waits_for_topics_that_somebody_else_creates(broker: Broker, topic: TopicFactory) -> None:
    """As in a container that starts beside the one which creates them."""
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(topic(1),), wait_seconds=30)
    with capture_logs() as lines:
        service = asyncio.create_task(require_topics(settings))
        while not lines and not service.done():  # noqa: ASYNC110 - a log tells nobody; one has to look
            await asyncio.sleep(0.02)
        await ensure_topics(settings)
        assert not [problem for problem in await service if problem.severity == "error"]
    assert "is missing" in lines[0]["reason"]


PAUSE_SECONDS = 0.6
"""Longer than several fetches at the end of a log take."""
WAIT_SECONDS = 30


async def test_nothing_is_fetched_between_two_looks(settings: Settings, topic: TopicFactory) -> None:
    partition = TopicPartition(topic(), 0)
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
        asking = asyncio.create_task(ask_repeatedly(settings, ask, PAUSE_SECONDS, "no broker"))
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


async def test_quiet_looks_grow_apart_until_something_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [QUIET, QUIET, QUIET, QUIET, None, QUIET, QUIET]
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def ask(_: object) -> object:
        if not answers:
            raise LookupError
        return answers.pop(0)

    @asynccontextmanager
    async def client(_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(pause=lambda *_: None, assignment=list)

    monkeypatch.setattr(module, "consumer", client)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop))
    with pytest.raises(LookupError):
        await ask_repeatedly(Settings(), ask, 1.0, "nothing", longest=3.0)
    assert pauses == [1.0, 2.0, 3.0, 3.0, 1.0, 2.0, 3.0]


async def test_that_no_broker_answers_is_told_elsewhere() -> None:
    """Once for a process, not by all who ask something (`tokenmill.app.broker_contact`)."""

    async def ask(_: AIOKafkaConsumer) -> None:
        """Never be called."""

    settings = Settings(bootstrap_servers="127.0.0.1:1")
    with capture_logs() as lines:
        asking = asyncio.create_task(ask_repeatedly(settings, ask, 0.01, "no broker"))
        await asyncio.sleep(2 * PAUSE_SECONDS)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])
    assert lines == []


def _watch(client: AIOKafkaConsumer, fetched: list[int]) -> None:
    fetcher: Any = client._fetcher
    if not hasattr(fetcher, "watched"):
        fetcher.watched = fetcher._proc_fetch_request

        async def watched(*arguments: Any) -> Any:
            fetched.append(1)
            return await fetcher.watched(*arguments)

        fetcher._proc_fetch_request = watched
