"""Keeping a local broker up: what `keep_broker` does with one that ends, and with one that does not start."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.app.local import keeping
from tokenmill.app.local.broker import Broker
from tokenmill.app.local.keeping import keep_broker
from tokenmill.errors import BrokerError


class Scripted(Broker):
    """A broker without a process: each start goes as it was told beforehand."""

    def __init__(self, directory: Path, *starts: Callable[[], None]) -> None:
        """Have ended."""
        super().__init__(directory)
        self.up = False
        self.under_way = 0
        self.killed = threading.Event()
        self._starts = list(starts)

    @property
    def running(self) -> bool:
        """Whether the last start went well."""
        return self.up

    def start(self, *, detached: bool = False) -> None:
        """Do what was told."""
        assert not detached
        self.under_way += 1
        try:
            self._starts.pop(0)()
            self.up = True
        finally:
            self.under_way -= 1

    def kill(self) -> None:
        """End the wait of a start."""
        self.killed.set()


def refuse() -> None:
    """Fail as a start does whose port is taken."""
    raise BrokerError("port 9092 is taken")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing."""
    for name in ("LOOK_SECONDS", "PAUSE_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(keeping, name, 0.0)


async def test_a_broker_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    """What is wrong is said each time; it may have been mended."""
    broker, said = Scripted(tmp_path, refuse, lambda: None), list[str]()
    task = asyncio.create_task(keep_broker(broker, said.append))
    while not broker.up:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert [line.partition(" (")[0].partition(":")[0] for line in said] == [
        "Kafka ended by itself or was killed",
        "Kafka does not start",
        "Kafka ended by itself or was killed",
        f"Kafka serves again at {broker.bootstrap_servers.partition(':')[0]}",
    ]


async def test_whoever_ends_waits_for_no_start_and_leaves_none(tmp_path: Path) -> None:
    """A start takes up to a minute; it is broken off, and is over when the keeper is."""

    def slowly() -> None:
        broker.killed.wait()
        raise BrokerError("Kafka ended while it started")

    broker = Scripted(tmp_path, slowly)
    task = asyncio.create_task(keep_broker(broker, lambda _: None))
    while not broker.under_way:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert broker.under_way == 0
    assert not broker.up
