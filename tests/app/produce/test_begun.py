"""A run's beginning, as Kafka keeps it."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tokenmill.app.local.broker import Broker
from tokenmill.app.produce.begun import Begun, keep_begun, read_begun, renew_begun, write_begun
from tokenmill.app.settings import Settings

FIRST = Begun(1, "sources", 2, {0: 0, 1: 7})
LATER = FIRST._replace(milliseconds=2)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass at once."""
    monkeypatch.setattr("tokenmill.app.produce.begun.KEEP_SECONDS", 0.01)


async def test_what_another_call_began_is_left_alone(broker: Broker, topic: TopicFactory) -> None:
    """A call that was taken over by one with --restart, and does not know it yet, writes nothing down."""
    settings, raw = Settings(bootstrap_servers=broker.bootstrap_servers), topic(2)
    await write_begun(settings, f"of-{raw}", raw, FIRST)
    await write_begun(settings, f"of-{raw}", raw, LATER)

    assert not await renew_begun(settings, f"of-{raw}", raw, FIRST)
    await keep_begun(settings, f"of-{raw}", raw, FIRST)

    assert await read_begun(settings, f"of-{raw}", raw) == LATER


async def test_silent_brokers_are_told_and_asked_again() -> None:
    """The run may well go on without them for a while, so it does not end by this."""
    with capture_logs() as logs:
        keeping = asyncio.create_task(keep_begun(Settings(bootstrap_servers="127.0.0.1:1"), "group", "raw", FIRST))
        while len(logs) < 2:
            await asyncio.wait([keeping], timeout=0.01)
        assert not keeping.done()
        keeping.cancel()

    assert "could not be written down again" in logs[0]["event"]
