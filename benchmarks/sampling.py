"""Samples of running processes, by py-spy: which functions were at work, and how much CPU each thread had."""

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

import psutil

from benchmarks.measuring import BenchmarkError, Watched
from benchmarks.stages import Frame, is_sync

RATE: Final = 200
"""Samples a second: some thousand in a run."""
IDLE_RATE: Final = 50
"""Of those that see waiting threads too; enough to tell how long the disk was waited for."""
PY_SPY: Final = Path(sys.executable).with_name("py-spy")

Stack = Sequence[Frame]
"""The outermost frame first."""
Stacks = dict[int, Counter[tuple[Frame, ...]]]
"""How often each stack was seen, by thread."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What was seen of one process between two moments."""

    role: str
    stacks: Stacks
    cpu_seconds: dict[int, float]
    """By thread, those without any Python included."""
    sync_seconds: float
    """Wall clock spent in fsync and its like, of all threads together; most of it is waiting for the disk."""

    def divide(self, label_of: Callable[[Stack], str | None]) -> dict[str, float]:
        """Return the CPU seconds by label; stacks whose label is None do not count.

        py-spy sees threads that can run, whether they are on a core or wait for one. So each thread's CPU seconds, as
        the kernel counts them, are divided in proportion to that thread's samples.
        """
        divided: dict[str, float] = {}
        for thread, seconds in self.cpu_seconds.items():
            labels: Counter[str] = Counter()
            for stack, count in self.stacks.get(thread, {}).items():
                label = label_of(stack)
                if label is not None:
                    labels[label] += count
            for label, count in (labels or Counter(other=1)).items():
                divided[label] = divided.get(label, 0.0) + seconds * count / (labels.total() or 1)
        return divided


@contextmanager
def sampled(processes: Sequence[Watched]) -> Iterator[list[Samples]]:
    """Sample the processes while the block runs; the list is filled, one for each, when it ends."""
    found: list[Samples] = []
    with TemporaryDirectory() as directory, ExitStack() as stack:
        spies = [stack.enter_context(_Spies(process, Path(directory))) for process in processes]
        yield found
        found += [spy.end() for spy in spies]


@contextmanager
def flame_graphs(
    processes: Sequence[Watched], *, output: Path, name: str, options: Sequence[str]
) -> Iterator[list[Path]]:
    """Draw a flame graph of each process, ``<role>-<name>.svg``, of what it does while the block runs."""
    files = [output / f"{process.role}-{name}.svg" for process in processes]
    spies = [
        _record(process, file, "--format", "flamegraph", *options)
        for process, file in zip(processes, files, strict=True)
    ]
    try:
        yield files
    finally:
        _end(spies)


class _Spies:
    """Two py-spies on one process: one sees threads at work, the other all of them."""

    def __init__(self, process: Watched, directory: Path) -> None:
        self._process = process
        self._cpu_before = _cpu_by_thread(process)
        self._files = [directory / f"{process.role}-{process.pid}.{kind}" for kind in ("busy", "all")]
        options = (
            ("--rate", str(RATE), "--nonblocking"),
            ("--rate", str(IDLE_RATE), "--nonblocking", "--idle"),
        )
        self._running = [
            _record(process, file, "--format", "raw", "--full-filenames", *how)
            for file, how in zip(self._files, options, strict=True)
        ]

    def end(self) -> Samples:
        """Return what was seen."""
        now = _cpu_by_thread(self._process)
        cpu = {thread: seconds - self._cpu_before.get(thread, 0.0) for thread, seconds in now.items()}
        self.stop()
        busy, everything = map(_stacks, self._files)
        syncs = sum(n for stacks in everything.values() for stack, n in stacks.items() if is_sync(stack))
        return Samples(self._process.role, busy, cpu, syncs / IDLE_RATE)

    def stop(self) -> None:
        """Let them end."""
        _end(self._running)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _record(process: Watched, file: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [str(PY_SPY), "record", "--pid", str(process.pid), "--output", str(file), "--threads", *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end(spies: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Let them write their files and end."""
    for spy in spies:
        spy.send_signal(signal.SIGINT)
    for spy in spies:
        spy.wait()


def _cpu_by_thread(process: Watched) -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process(process.pid).threads()}


def _stacks(file: Path) -> Stacks:
    """Read lines such as ``thread (123): MainThread;run (a.py:1);work (b.py:2) 17``."""
    if not file.exists():
        raise BenchmarkError(
            "py-spy saw nothing: it needs the right to look into other processes (be root, or let "
            "kernel.yama.ptrace_scope be 0); `--no-picture` does without"
        )
    stacks: Stacks = {}
    for line in file.read_text().splitlines():
        text, _, count = line.rpartition(" ")
        thread, *rest = text.split(";")
        number = re.match(r"thread \((\d+)\)", thread)
        frames = tuple(frame for frame in map(Frame.parse, rest) if frame is not None)
        if number and frames:
            stacks.setdefault(int(number[1]), Counter())[frames] += int(count)
    return stacks
