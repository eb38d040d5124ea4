"""`tokenmill` without a supervisor and with little patience, broken as ``BREAK`` says: ``-m tests.app.broken mill``.

``deaf``: the worker takes every assignment for an empty one. ``stuck``: a segment worker never ends with a batch.
"""

import asyncio
import os
from typing import Any, Final

from faust.types import TP

from tokenmill.app.cli import main
from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.segments.token_partition import TokenPartition
from tokenmill.app.telemetry.reporting import HEARTBEAT_VARIABLE
from tokenmill.app.worker import watchdog as alone
from tokenmill.app.worker.transport import Partitions
from tokenmill.app.worker.watchdog import WatchLimits

VARIABLE: Final = "BREAK"
PATIENCE: Final = WatchLimits(unowned=12.0, still=6.0)
"""Above what a group takes to form on a busy machine."""

_assigned = Partitions.assigned


async def deaf(self: Partitions[Any], _: set[TP]) -> None:
    """Hear that nothing is ours."""
    await _assigned(self, set())


async def stuck(_self: TokenPartition, _batch: FetchedBatch) -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


if __name__ == "__main__":
    del os.environ[HEARTBEAT_VARIABLE]
    alone.LIMITS = PATIENCE  # type: ignore[misc]
    alone.LOOK_SECONDS = 1.0  # type: ignore[misc]
    match os.environ.get(VARIABLE):
        case "deaf":
            Partitions.assigned = deaf  # type: ignore[method-assign,assignment]
        case "stuck":
            TokenPartition.feed = stuck  # type: ignore[method-assign,assignment]
    main()
