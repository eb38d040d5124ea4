"""A clock that brokers do not put up with is named, whoever sends."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import InvalidTimestampError
from aiokafka.producer.message_accumulator import BatchBuilder

from tests.conftest import TopicFactory
from tokenmill.app.kafka.clients import producer, sending_to
from tokenmill.app.kafka.control_topic import write_control
from tokenmill.app.settings import Settings
from tokenmill.app.worker.transport import BatchApp
from tokenmill.errors import ClockError


async def refuse(*_: object, **__: object) -> None:
    raise InvalidTimestampError


async def test_a_broker_that_refuses_our_time_is_told_apart(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(message_timestamp_after_max_ms=3_600_000)
    ahead = round(time.time() * 1000) + 7_200_000
    with pytest.raises(ClockError, match=r"this machine's clock says 20\d\d-.*NTP.*LogAppendTime"):
        async with producer(settings) as client:
            await client.send_and_wait(name, b"x", timestamp_ms=ahead)
    append = BatchBuilder.append
    monkeypatch.setattr(BatchBuilder, "append", lambda self, **said: append(self, **{**said, "timestamp": ahead}))
    with pytest.raises(ClockError, match=f"for topic {name}"):
        await write_control(settings, name, [(b"k", b"v")])


async def test_produce_and_a_mill_name_the_topic_and_the_clock() -> None:
    with pytest.raises(ClockError, match="for topic raw"), sending_to("raw"):
        raise InvalidTimestampError
    app: Any = SimpleNamespace(producer=SimpleNamespace(send_and_wait=refuse))
    with pytest.raises(ClockError, match="for topic tokens"):
        await BatchApp.send_record(app, "tokens", 0, b"", None, ())
