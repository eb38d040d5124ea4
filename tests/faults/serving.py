"""The whole service as people run it: `tokenmill serve`, a process whose workers nobody touches but itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.scraping import Key, free_port, scrape
from tokenmill.app.settings import Settings

WAIT_SECONDS: Final = 150.0
"""How long a wait may take; a supervisor waits up to 30 s before it starts a worker again."""
POLL_SECONDS: Final = 0.1
LOG_BYTES: Final = 8000
STOP_SECONDS: Final = 20.0
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Serving:
    """`tokenmill serve` from entry to exit; a test starts nothing again, and has no hand in anything."""

    def __init__(self, settings: Settings, directory: Path, *words: str, through: str | None = None) -> None:
        """Start nothing yet; the command gets more ``words``, and the log goes into ``directory``.

        The service reaches the brokers at the address ``through``, the test itself at that of ``settings``.
        """
        self.settings = settings
        self.port = free_port()
        update: dict[str, object] = {"metrics_port": self.port, "log_format": "json"}
        self._its = settings.model_copy(update=update | ({"bootstrap_servers": through} if through else {}))
        self._words = words
        self._log_path = directory / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tokenmill.app.cli", "serve", *self._words],
                env={**os.environ, **self._its.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers end with it
            self._process.wait()

    @property
    def running(self) -> bool:
        """Whether the supervisor has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that supervisor and workers have said."""
        return self._log_path.read_text(errors="replace")

    @property
    def pids(self) -> dict[int, str]:
        """The workers' processes, and the role of each."""
        return dict(_children(self._process.pid)) if self._process is not None else {}

    def rss(self) -> int:
        """Return the memory in bytes that supervisor and workers hold together."""
        held = 0
        for pid in [*self.pids, *([self._process.pid] if self._process else [])]:
            try:
                held += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
        return held

    def samples(self) -> dict[Key, float]:
        """Return what ``/metrics`` says; nothing while nobody answers."""
        return scrape(self.port)

    def wait_for_end(self) -> int:
        """Wait until the supervisor ends by itself; return its exit code."""
        assert self._process is not None
        return self._process.wait(WAIT_SECONDS)

    def tend(self) -> None:
        """Do nothing: the supervisor does it."""

    def wait_until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition; fail with the end of the log when it does not come, or the supervisor ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.running or time.monotonic() > deadline:
                code = self._process.poll() if self._process else None
                raise AssertionError(f"it did not come to that; exit code {code}, the log:\n{self.log[-LOG_BYTES:]}")
            time.sleep(POLL_SECONDS)


def _children(parent: int) -> Iterator[tuple[int, str]]:
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            words = (directory / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        role = words[-2].decode() if len(words) > 1 else ""  # it has not even a name where it has just been forked
        if int(fields[1]) == parent and fields[0] != "Z" and role in {"mill", "segment", "sequencer"}:
            yield int(directory.name), role
