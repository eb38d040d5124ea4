"""`tokenmill`, broken as ``BREAK`` says (`BREAKS`): ``BREAK=stubborn python -m tests.app.broken mill``."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokafka.producer.message_accumulator import BatchBuilder

from tokenmill.app.cli import main
from tokenmill.app.mill import topic_changes
from tokenmill.app.segments.token_partition import TokenPartition
from tokenmill.app.telemetry.reporting import HEARTBEAT_VARIABLE
from tokenmill.app.worker import watchdog as alone
from tokenmill.app.worker.transport import BatchApp, Partitions
from tokenmill.app.worker.watchdog import WatchLimits

ENTRY: Final = "tests.app.broken"
VARIABLE: Final = "BREAK"
PATIENCE: Final = WatchLimits(unowned=12.0, still=6.0)
"""Above what a group takes to form on a busy machine."""
AHEAD: Final = 7200.0
"""Seconds; more than brokers put up with, an hour (message.timestamp.after.max.ms)."""

_assigned, _append, _start = Partitions.assigned, BatchBuilder.append, BatchApp.on_first_start


def impatient() -> None:
    del os.environ[HEARTBEAT_VARIABLE]
    alone.LIMITS = PATIENCE  # type: ignore[misc]
    alone.LOOK_SECONDS = 1.0  # type: ignore[misc]


async def for_ever(*_: object) -> None:
    await asyncio.Event().wait()


def deaf() -> None:
    """Take every assignment for an empty one."""
    impatient()
    Partitions.assigned = lambda self, _: _assigned(self, set())  # type: ignore[method-assign,assignment]


def stuck() -> None:
    """Never end with a batch, as a segment worker."""
    impatient()
    TokenPartition.feed = for_ever  # type: ignore[method-assign,assignment]


def stubborn() -> None:
    """Do not stop in order, as Faust may."""
    BatchApp.on_stop = for_ever  # type: ignore[method-assign,assignment]


def crashing() -> None:
    """Start as always, and crash, as one of Faust's own services may; do not stop in order then."""

    async def crash() -> None:
        raise SystemExit(1)

    async def start(app: BatchApp) -> None:
        await _start(app)
        app.add_future(crash())

    stubborn()
    BatchApp.on_first_start = start  # type: ignore[method-assign,assignment]


def clock_ahead() -> None:
    """Be two hours ahead. The parameters are those of the fast path, so that it is used."""

    def append(self: Any, *, timestamp: int | None, key: Any, value: Any, headers: Any = ()) -> Any:
        ahead = round((time.time() + AHEAD) * 1000) if timestamp is None else timestamp
        return _append(self, timestamp=ahead, key=key, value=value, headers=headers)

    BatchBuilder.append = append


def watchful() -> None:
    topic_changes.LOOK_SECONDS = 0.5  # type: ignore[misc]


BREAKS: Final[Mapping[str, Callable[[], None]]] = {
    each.__name__: each for each in (impatient, deaf, stuck, stubborn, crashing, clock_ahead, watchful)
}

if __name__ == "__main__":
    BREAKS[os.environ[VARIABLE]]()
    main()
