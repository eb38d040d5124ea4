"""The whole service as people run it: `tokenmill serve`, a process whose workers nobody touches but itself."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import psutil

from tests.marked import until
from tests.scraping import free_port
from tests.service import Service, Worker
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor.supervisor import Supervisor
from tokenmill.app.worker.watchdog import WatchLimits

WAIT_SECONDS: Final = 150.0  # how long a wait may take; a supervisor waits up to 30 s before it starts a worker again
ROLES: Final = ("mill", "segment", "sequencer")


class Serving:
    """`tokenmill serve` from entry to exit; a test starts nothing again, and has no hand in anything."""

    def __init__(
        self, settings: Settings, directory: Path, *words: str, through: str | None = None, prefix: Sequence[str] = ()
    ) -> None:
        """Start nothing yet; the command gets more ``words``, and the log goes into ``directory``.

        The service reaches the brokers at the address ``through``, the test itself at that of ``settings``. The command
        ``prefix`` executes the service's, in its own process.
        """
        self.settings = settings
        self.port = free_port()
        update: dict[str, object] = {"metrics_port": self.port, "log_format": "json"}
        self._its = settings.model_copy(update=update | ({"bootstrap_servers": through} if through else {}))
        self._command = [*prefix, sys.executable, "-m", "tokenmill.app.cli", "serve", *words]
        self._log_path = directory / "serve.log"

    def __enter__(self) -> Self:
        with self._log_path.open("ab") as log:
            ways: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._process = subprocess.Popen(self._command, env={**os.environ, **self._its.environment()}, **ways)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers end with it
            return self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def pids(self) -> dict[int, str]:
        looked = (one.info for one in psutil.process_iter(["pid", "ppid", "cmdline"]))
        words = {one["pid"]: one["cmdline"] or [""] for one in looked if one["ppid"] == self.pid}
        return {pid: said[-1] for pid, said in words.items() if said[-1] in ROLES}

    def rss(self) -> int:
        held = 0
        for pid in (self.pid, *self.pids):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                held += psutil.Process(pid).memory_info().rss
        return held

    def wait_for_end(self) -> int:
        return self._process.wait(WAIT_SECONDS)

    def tend(self) -> None:
        """Do nothing: the supervisor does it."""

    def wait_until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition; fail with the end of the log when it does not come, or the supervisor ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.running or time.monotonic() > deadline:
                code, log = self._process.poll(), self.log[-8000:]
                raise AssertionError(f"it did not come to that; exit code {code}, the log:\n{log}")
            time.sleep(0.1)


class Supervised:
    """A supervisor in an event loop and a thread of its own; it ends with its workers when the block does."""

    def __init__(self, settings: Settings, directory: Path, limits: WatchLimits, *, through: str | None = None) -> None:
        """Start it; workers log into ``directory``. It reaches the brokers at ``through``, if that is given."""
        self.settings = settings
        its = settings.at(through) if through else settings
        self.events: list[str] = []  # what it told of its workers
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
        return next(status.pid or 0 for status in self.supervisor.status().workers if status.name == worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def tend(self) -> None:
        """Do nothing: the supervisor does it."""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        assert until(condition, WAIT_SECONDS), "\n".join(["it did not come to that; the supervisor said", *self.events])


@contextmanager
def working(settings: Settings, each: int = 1) -> Iterator[Service]:
    """Run so many mills, then so many segment workers; their logs are beside the store."""
    with Service(settings, settings.store.parent) as service:
        service.mill(each)
        for _ in range(each):
            service.segment()
        yield service


def halted(worker: Worker, name: str) -> str:
    """Return why a partition stands; empty while it does not."""
    return str(worker.partitions.get(name, {}).get("halted") or "")


def most_memory(pid: int) -> int:
    """Return the most bytes of memory that a process has had; 0 where it has ended."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) << 10 if found else 0
