"""Child processes, started so that they end with this one, and found again; and this process's own limits.

A process id alone is no identity, for the kernel gives numbers out again; with the process's start time it is. Linux
only: this reads ``/proc`` and uses the parent-death signal.
"""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Final, Self

POLL_SECONDS = 0.05
MOST_FILES = 65_536
"""Open at a time: far more than segments and connections take; some programs look at each number that is allowed."""
SAFE_PATH: Final = "PYTHONSAFEPATH"
"""What ``-P`` is as a variable: the working directory is not on the module path."""

# Runs in the new process before the program: asks the kernel for SIGKILL at the owner's death (prctl 1 is
# PR_SET_PDEATHSIG), and ends if the owner died before that. A program of its own, because code between fork and exec is
# not safe in a process with threads. What it asks for survives exec.
GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, running or not: its id, and when it started, in the kernel's ticks since boot."""

    pid: int
    ticks: int

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the process that `save` wrote to ``path``; None when there is no such file."""
        try:
            pid, ticks = path.read_text().split()
        except FileNotFoundError:
            return None
        return cls(int(pid), int(ticks))

    def save(self, path: Path) -> None:
        """Write to ``path`` what `load` needs, whole or not at all."""
        temporary = path.with_suffix(".new")
        temporary.write_text(f"{self.pid} {self.ticks}\n")
        temporary.replace(path)

    @property
    def running(self) -> bool:
        """Whether it exists and has not ended; a stopped (paused) process is running."""
        return _ticks(self.pid) == self.ticks

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.running:
            with suppress(ProcessLookupError):  # it ended between the two lines
                os.kill(self.pid, number)

    def ends_within(self, seconds: float) -> bool:
        """Wait until it has ended, at most ``seconds``, and return whether it has."""
        deadline = time.monotonic() + seconds
        while self.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def allow_more_files() -> None:
    """Let this process, and those that it starts, open as many files as it may allow itself; `MOST_FILES` will do."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command``, killed by the kernel when the thread that starts it ends."""
    return [sys.executable, "-I", "-S", "-c", GUARD, str(os.getpid()), *command]


def start(command: Sequence[str], log: Path, *, detached: bool = False) -> Process:
    """Start ``command`` in a session of its own, which Ctrl-C does not reach, both outputs appended to ``log``.

    Unless ``detached``, the kernel kills it when this process ends. Raises OSError when the program cannot be run.
    """
    if not detached:
        command = guarded(command)
    started: Future[Process] = Future()

    # In a thread that lives as long as the process: to the kernel, the death of the *thread* that started a process is
    # its parent's death, and a caller's own thread may end sooner. The thread also waits, so that no zombie stays.
    def own() -> None:
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            started.set_exception(error)
            return
        # It has not been waited for, so the kernel still knows it, even if it has ended.
        started.set_result(Process(process.pid, _ticks(process.pid, ended=True)))
        process.wait()

    threading.Thread(target=own, name=f"owner of {Path(command[0]).name}", daemon=True).start()
    return started.result()


def _ticks(pid: int, *, ended: bool = False) -> int:
    """Return the start time of process ``pid``; -1 when there is none or, unless ``ended``, when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    # proc(5): the second field, in parentheses, is the name and may hold anything; then come the state (0 below), the
    # number of threads (17) and the start time (19). Z and X: ended, with only the exit status left, as soon as no
    # thread but the first is left; until then files and ports are still in use.
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" and int(fields[17]) <= 1 and not ended else int(fields[19])


OBJECTS: Final = 250_000
"""New objects between two garbage collections. Imports make many and leave none; a fetch of small documents makes forty
thousand, which live until it is milled, without cycles, and a worker has some fetches at once: at 50,000, looking took
3 % of its time. At Python's own 700 a start takes a tenth longer, each fetch is looked at some dozen times, and
`produce` spends a third of its time for small documents on looking."""


def collect_seldom() -> None:
    """Run garbage collection seldom in this process."""
    gc.set_threshold(OBJECTS, 10, 10)


def keep_loaded() -> None:
    """Leave what is there now out of all collections to come: what was imported, and what was opened for good."""
    gc.collect()
    gc.freeze()


@contextmanager
def side_processes(
    count: int, name: str, work: Callable[[Connection], None]
) -> Iterator[dict[Connection, BaseProcess]]:
    """Yield the pipes to ``count`` processes, and the processes, which run ``work(pipe)`` until the block ends.

    They are killed then, and end by themselves where this process does. All that they are told comes through these
    pipes, which break with a process; what multiprocessing hands over goes through one that stays open at both ends,
    and writing to a process that has ended never ends there.
    """
    workers: dict[Connection, BaseProcess] = {}
    context = multiprocessing.get_context("spawn")  # no lock or connection is copied
    try:
        for number in range(count):
            mine, theirs = context.Pipe()
            arguments = (work, theirs)
            process: BaseProcess = context.Process(target=_aside, args=arguments, name=f"{name} {number}", daemon=True)
            with _shielded():
                process.start()
            theirs.close()
            workers[mine] = process
        yield workers
    finally:
        for process in workers.values():
            process.kill()
        for connection, process in workers.items():
            process.join()
            connection.close()


def _aside(work: Callable[[Connection], None], connection: Connection) -> None:
    collect_seldom()
    _end_with_parent()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the process that started this one is gone
        work(connection)


@contextmanager
def _shielded() -> Iterator[None]:
    """Start processes that import nothing from the working directory, never see Ctrl-C, and have no arguments of ours.

    They inherit the first two. multiprocessing says ``-P`` to them only if we were started with it.
    """
    safe, arguments = os.environ.get(SAFE_PATH), sys.argv
    os.environ[SAFE_PATH], sys.argv = "1", sys.argv[:1]
    before: set[int | signal.Signals] = set()
    try:
        ensure_running()  # multiprocessing's own helper would be started next, and lift the mask again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.argv = arguments
        if safe is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = safe


def _end_with_parent() -> None:
    """Let this process end as soon as the one that started it has ended, however that came about."""

    def end() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()
