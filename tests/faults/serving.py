"""The whole service as people run it: `tokenmill serve`, a process whose workers nobody touches but itself."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

from tests.scraping import Key, free_port, scrape
from tokenmill.app.settings import Settings

WAIT_SECONDS: Final = 150.0
"""How long a wait may take; a supervisor waits up to 30 s before it starts a worker again."""
POLL_SECONDS: Final = 0.1
LOG_BYTES: Final = 8000
STOP_SECONDS: Final = 20.0
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
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._its.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End it in order, or after a while by force; return the exit code."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers end with it
            return self._process.wait()

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the supervisor has not ended."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """All that supervisor and workers have said."""
        return self._log_path.read_text(errors="replace")

    @property
    def pids(self) -> dict[int, str]:
        """The workers' processes, and the role of each."""
        looked = (one.info for one in psutil.process_iter(["pid", "ppid", "cmdline"]))
        words = {one["pid"]: one["cmdline"] or [""] for one in looked if one["ppid"] == self.pid}
        return {pid: said[-1] for pid, said in words.items() if said[-1] in ROLES}

    def rss(self) -> int:
        """Return the memory in bytes that supervisor and workers hold together."""
        held = 0
        for pid in (self.pid, *self.pids):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                held += psutil.Process(pid).memory_info().rss
        return held

    def samples(self) -> dict[Key, float]:
        """Return what ``/metrics`` says; nothing while nobody answers."""
        return scrape(self.port)

    def wait_for_end(self) -> int:
        """Wait until the supervisor ends by itself; return its exit code."""
        return self._process.wait(WAIT_SECONDS)

    def tend(self) -> None:
        """Do nothing: the supervisor does it."""

    def wait_until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition; fail with the end of the log when it does not come, or the supervisor ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.running or time.monotonic() > deadline:
                code, log = self._process.poll(), self.log[-LOG_BYTES:]
                raise AssertionError(f"it did not come to that; exit code {code}, the log:\n{log}")
            time.sleep(POLL_SECONDS)
