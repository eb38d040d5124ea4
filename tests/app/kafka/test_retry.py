"""Patience at the start: as long as the settings say, aloud, and only for what may come."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tests.outages import Hands
from tokenmill.app.kafka import retry as patience
from tokenmill.app.kafka.fastpath import connecting
from tokenmill.app.kafka.fastpath.connecting import Pauses
from tokenmill.app.kafka.retry import patiently
from tokenmill.app.kafka.topics import ensure_topics, partition_count, require_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.errors import BrokerError, MissingTopicError, SettingsError

PATIENT = Settings(bootstrap_servers="127.0.0.1:1", wait_seconds=30)


async def test_what_comes_in_time_is_waited_for_aloud() -> None:
    """A line says what is missing, and another one when it is something else."""
    tries = itertools.count(1)

    async def look() -> int:
        number = next(tries)
        if number == 1:
            raise BrokerError("no broker answers at kafka:9092")
        if number == 2:
            raise MissingTopicError("topic raw-text does not exist")
        return number

    with capture_logs() as lines:
        assert await patiently(PATIENT, look) == 3

    assert [line["reason"] for line in lines] == ["no broker answers at kafka:9092", "topic raw-text does not exist"]
    assert {line["log_level"] for line in lines} == {"warning"}


async def test_without_patience_the_first_try_decides() -> None:
    """As for a command that somebody types, and nothing is logged beside its error."""
    with capture_logs() as lines, pytest.raises(BrokerError, match="no broker answers"):
        await partition_count(PATIENT.model_copy(update={"wait_seconds": 0.0}), "raw-text")
    assert not lines


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the settings' seconds, with the error of the last try."""
    monkeypatch.setattr(connecting, "PAUSES", Pauses())  # other tests have tried there
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

    monkeypatch.setattr(patience, "asyncio", SimpleNamespace(get_running_loop=lambda: hands, sleep=sleep))
    with capture_logs() as lines, pytest.raises(BrokerError):
        await patiently(PATIENT.model_copy(update={"wait_seconds": 200.0}), look)
    assert len(tries) > 40
    assert len(lines) == 4


async def test_what_waiting_does_not_mend_is_told_at_once() -> None:
    """A wrong setting stays wrong."""

    async def look() -> None:
        raise SettingsError("no tokenizer is set")

    with capture_logs() as lines, pytest.raises(SettingsError):
        await patiently(PATIENT, look)
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
