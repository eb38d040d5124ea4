"""A supervisor in this process, as patient as a test likes; its workers are processes."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.faults.serving import WAIT_SECONDS
from tests.marked import until
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor.supervisor import Supervisor
from tokenmill.app.worker.watchdog import WatchLimits


class Supervised:
    """A supervisor in an event loop and a thread of its own; it ends with its workers when the block does."""

    def __init__(self, settings: Settings, directory: Path, limits: WatchLimits, *, through: str | None = None) -> None:
        """Start it; workers log into ``directory``. It reaches the brokers at ``through``, if that is given."""
        self.settings = settings
        its = settings.at(through) if through else settings
        self.events: list[str] = []
        """What it told of its workers."""
        self.supervisor = Supervisor(
            its, limits=limits, log_directory=directory, on_event=lambda event: self.events.append(event.text)
        )
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self.supervisor.run())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    def pid(self, worker: str) -> int:
        """Return the worker's process, 0 where none runs."""
        return next(status.pid or 0 for status in self.supervisor.status().workers if status.name == worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def tend(self) -> None:
        """Do nothing: the supervisor does it."""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, not for ever."""
        assert until(condition, WAIT_SECONDS), "\n".join(["it did not come to that; the supervisor said", *self.events])
