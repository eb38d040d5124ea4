"""Processes with a stop-watch: CPU seconds and wall clock from the line that says "ready", and the peak of memory."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tokenmill.app.processes import guarded

START_SECONDS: Final = 60.0
"""How long processes may take until they are ready; most of it is importing, and Kafka's wait for a group's members."""
RUN_SECONDS: Final = 300.0
"""How long one run may take: far longer than it should."""
POLL_SECONDS: Final = 0.02
"""How often the tokens on disk are counted; small beside a run, large beside one count."""
LOG_BYTES: Final = 3000
"""How much of each log a failure shows."""
EXTRA_SECONDS: Final = 0.2
"""How long is waited for tokens too many, once there are enough."""


class BenchmarkError(Exception):
    """A contender did not do its work; its numbers would mean nothing."""


class Watched:
    """A process of a contender, killed when the block ends, and with its parent; its output is in ``log``."""

    def __init__(
        self,
        role: str,
        command: Sequence[str],
        log: Path,
        *,
        mark: bytes,
        marks: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, with more variables. It is ready when ``marks`` lines of its output hold ``mark``."""
        self.role = role
        self.log = log
        self.ready_at: float | None = None
        """`time.perf_counter` when it said so."""
        self._cpu_before = 0.0
        self._mark, self._marks = mark, marks
        self._process = subprocess.Popen(
            guarded(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        self._watched = psutil.Process(self._process.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def restart_clock(self) -> None:
        """Count from now: what waited for others began before they did."""
        self._cpu_before = self._cpu_now()
        self.ready_at = time.perf_counter()

    def cpu_seconds(self) -> float:
        """Return user and system seconds, its children's included, since it became ready (or `restart_clock`)."""
        return self._cpu_now() - self._cpu_before

    def peak_rss_bytes(self) -> int:
        """Return the most memory that it had at once, since it began (``VmHWM``, proc(5))."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024

    def check(self) -> None:
        """Raise `BenchmarkError` if it has ended: nothing here ends by itself."""
        if self._process.poll() is not None:
            self._reader.join(1.0)
            raise BenchmarkError(f"{self.role} ended with exit code {self._process.returncode}:\n{self.log_end()}")

    def log_end(self) -> str:
        """Return the last lines that it said."""
        return self.log.read_text(errors="replace")[-LOG_BYTES:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _cpu_now(self) -> float:
        family = [self._watched, *self._watched.children(recursive=True)]
        return sum(float(times.user + times.system) for times in (process.cpu_times() for process in family))

    def _read(self) -> None:
        """Copy the output into the log, and start the clock at the mark."""
        lines = self._process.stdout or ()
        with self.log.open("wb", buffering=0) as log:
            for line in lines:
                if self.ready_at is None and self._mark in line:
                    self._marks -= 1
                    if not self._marks:
                        self.restart_clock()
                log.write(line)


def wait_until_ready(processes: Iterable[Watched]) -> None:
    """Wait until all are ready. Raises `BenchmarkError` when one ends, or takes too long."""
    deadline = time.perf_counter() + START_SECONDS
    for process in processes:
        while process.ready_at is None:
            process.check()
            if time.perf_counter() > deadline:
                raise BenchmarkError(f"{process.role} is not ready:\n{process.log_end()}")
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run took."""

    wall_seconds: float
    """From the first process that was ready until all tokens were on disk."""
    cpu_seconds: Mapping[str, float]
    """By role, over the same time."""
    peak_rss_bytes: int
    """The sum of all processes' peaks."""


def measure(processes: Sequence[Watched], tokens_on_disk: Callable[[], int], expected: int) -> Measured:
    """Wait for the tokens, and return what they took.

    Raises:
        BenchmarkError: a process ended, the tokens did not come, or there are too many of them.

    """
    wait_until_ready(processes)
    started = min(process.ready_at or 0.0 for process in processes)
    while (found := tokens_on_disk()) < expected:
        for process in processes:
            process.check()
        if time.perf_counter() - started > RUN_SECONDS:
            ends = "\n".join(f"{process.role}:\n{process.log_end()}" for process in processes)
            raise BenchmarkError(f"{found:,} of {expected:,} tokens are on disk after {RUN_SECONDS:.0f} s\n{ends}")
        time.sleep(POLL_SECONDS)
    ended = time.perf_counter()
    cpu: dict[str, float] = {}
    for process in processes:
        cpu[process.role] = cpu.get(process.role, 0.0) + process.cpu_seconds()
    peak = sum(process.peak_rss_bytes() for process in processes)
    time.sleep(EXTRA_SECONDS)
    if (found := tokens_on_disk()) != expected:
        raise BenchmarkError(f"{found:,} tokens are on disk, and {expected:,} should be")
    return Measured(ended - started, cpu, peak)
