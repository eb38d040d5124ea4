"""A worker without a supervisor watches itself, for what only a new start repairs.

It ends with a code that says so; whoever runs it (systemd, a container engine) starts it again, and that start checks
everything. Under a supervisor the supervisor looks, at all workers together.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..settings import Settings
from ..telemetry.reporting import HEARTBEAT_VARIABLE
from ..worker.ending import end_process, or_end
from ..worker.transport import BatchApp
from .cluster import Cluster
from .watchdog import PartitionsSeen, Watchdog, WatchLimits

LIMITS: Final = WatchLimits()
LOOK_SECONDS: Final = 5.0
"""How often it looks: workers that share a group all ask the brokers who is in it, and limits are half a minute."""
ME: Final = "this worker"


class SelfWatchdog:
    """Looks, from `start` to the end of the process, whether the worker and its group do their work."""

    def __init__(
        self, settings: Settings, app: BatchApp, topics: Sequence[str], status: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Prepare; ``status`` is what a supervisor would be told of the partitions of ``topics``."""
        self._settings = settings
        self._app = app
        self._cluster = Cluster(settings, topics)
        self._status = status
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def open_since(self) -> Mapping[str, float]:
        """In which partitions a transaction stays open, and since when; none while a supervisor watches."""
        return self._cluster.open_since

    def start(self) -> None:
        """Watch from now on, unless a supervisor does."""
        if HEARTBEAT_VARIABLE not in os.environ and not self._tasks:
            loop = asyncio.get_running_loop()
            work = (self._cluster.watch(), self._watch())
            self._tasks = [loop.create_task(or_end(each), name="watch") for each in work]

    async def _watch(self) -> None:
        watchdog = Watchdog(LIMITS)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            ends = self._cluster.stable_ends
            others: set[str] = set()
            if not ends.keys() <= self._status()["partitions"].keys():
                others = await self._cluster.owned_by_others(self._app.conf.id, self._app.member)
            said = self._status()["partitions"]
            seen = PartitionsSeen(ends, dict.fromkeys(said, ME), said, others)
            for fault in watchdog.look(time.monotonic(), seen, (ME,)):
                end_process(fault.reason)
