"""What the tests of the service share."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import topics_on
from tests.milled import Milled, mill_everything
from tests.secured import Secured, secured_broker
from tests.service import WAIT_SECONDS
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings


async def until(condition: Callable[[], object], *tasks: "asyncio.Task[Any]") -> None:
    """Wait for what tells nobody; the tasks that bring it about must not end before."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
            await asyncio.sleep(0.005)


async def rest(times: int = 50) -> None:
    """Let everything go on that can at once."""
    for _ in range(times):
        await asyncio.sleep(0)


class EndedError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty directory and environment, so that no settings of the developer count."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("TOKENMILL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def settings(broker: Broker) -> Settings:
    return Settings(bootstrap_servers=broker.bootstrap_servers)


@pytest.fixture(scope="session")
def milled(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Milled:
    """Mill a raw topic into two streams with real workers, which have ended; for all tests that change nothing."""
    return mill_everything(broker, topics_on(broker, "milled")(2), tmp_path_factory.mktemp("milled"))


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as secured:
        yield secured
