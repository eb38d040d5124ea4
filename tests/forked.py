"""Processes that run a module as ``python -m`` does, without loading again what every worker loads.

It takes two thirds of a second of a core until a new Python has loaded a worker, and the tests start hundreds of them.
So one process loads it all (`multiprocessing`'s fork server, one for each process of the test run), and each worker,
and each command, is a fork of that: in a session of its own, with its own environment, its own log, and signals as
after a start.

The processes that `verify` and `pack` start beside themselves are such forks as well, where a test runs these commands
in its own process.
"""

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import current_process, forkserver, get_context, spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from tokenmill.app import processes
from tokenmill.app.cli import BLAS_THREADS

ROOT: Final = Path(__file__).parents[1]
LOADED: Final = "tests.loaded"
SECONDS: Final = 90.0
"""For a command to its end."""
SHOWN: Final = 4000
"""Characters of a log in the message of an error."""
FIRST_INHERITED: Final = 100
"""The number of the first descriptor that a process inherits; none of its own is as high when it begins."""


class Forked:
    """Such a process, with the methods of `subprocess.Popen` that tests of workers use."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        inherited: Mapping[str, int] = MappingProxyType({}),
        directory: Path | None = None,
    ) -> None:
        """Start it, in our working directory if not in another. Its output goes to the end of ``log``.

        It inherits descriptors of ours, and each of these variables says which number one has there.
        """
        ours = [Connection(os.dup(number), readable=False) for number in inherited.values()]
        numbers = {name: str(number) for number, name in enumerate(inherited, FIRST_INHERITED)}
        place = (str(log.absolute()), str(directory or Path.cwd()))
        self._process = _server().Process(
            target=_become, args=(module, [*arguments], *place, {**environment, **numbers}, ours), daemon=True
        )
        self._process.start()
        self._name, self._log = " ".join([module, *arguments]), log
        for each in ours:
            each.close()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """What `poll` returns."""
        return self.poll()

    @property
    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-SHOWN:] if self._log.exists() else ""

    def poll(self) -> int | None:
        """Return the exit code, the negative number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not; the message has the end of its log.

        """
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"{self._name} ({self.said})", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, if it has not ended."""
        self.send_signal(signal.SIGKILL)


def command(words: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path | None = None) -> Forked:
    """Start ``tokenmill`` with these words; variables of ``environment`` are set beside ours. As `Forked`."""
    return Forked("tokenmill.app.cli", words, log, {**os.environ, **environment}, directory=directory)


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    said: str


def run(words: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path | None = None) -> Ended:
    """Run such a command to its end, with a new ``log``; one that does not end is killed."""
    log.write_bytes(b"")
    process = command(words, log, environment, directory)
    try:
        return Ended(process.wait(SECONDS), log.read_text(errors="replace"))
    finally:
        process.kill()


class _SideFork(ForkServerProcess):
    """One of `tokenmill.app.processes.side_processes`.

    Gets the environment and signal mask that a spawned process would inherit.
    """

    def __init__(self, **arguments: Any) -> None:
        _server()
        super().__init__(**arguments)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        super().run()


class SideForks(ForkServerContext):
    """What to set `tokenmill.app.processes.STARTING` to."""

    Process = _SideFork


def die_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let side processes end before they read anything; the command line of this process is long."""
    ensure_running()
    monkeypatch.setattr(processes, "STARTING", get_context("spawn"))
    monkeypatch.setattr(spawn, "_python_exe", b"/bin/true")
    monkeypatch.setattr(sys, "argv", ["tokenmill", *["a path" * 100] * 1000])


@cache
def _server() -> ForkServerContext:
    """Start the server, in which numpy has no threads: a fork would be without them.

    It finds these tests wherever pytest runs: it passes over what it cannot import, and each fork would load it again.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([LOADED])
    with pytest.MonkeyPatch.context() as patch:  # forks have the environments that they are given
        patch.setenv(*BLAS_THREADS)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        forkserver.ensure_running()
    return context


def _become(  # noqa: PLR0917 - multiprocessing passes them
    module: str,
    arguments: list[str],
    log: str,
    directory: str,
    environment: dict[str, str],
    inherited: list[Connection],
) -> None:
    """Be what a new process is, then the module."""
    current_process().daemon = False  # so it may have processes of its own
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number, here in enumerate((nothing, output, output)):
        os.dup2(here, number)
    for number, connection in enumerate(inherited, FIRST_INHERITED):
        os.dup2(connection.fileno(), number)
        connection.close()
    os.close(nothing)
    os.close(output)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
