"""Processes that run a module as a user's shell does, each with its own session, environment and log."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import spawn
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
SECONDS: Final = 90.0


class Command(subprocess.Popen[bytes]):
    """``python -m`` with a module. Whoever ends it with `kill` need not wait for it."""

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
        self._log = log
        path = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(ROOT)]))
        numbers = {name: str(number) for name, number in inherited.items()}
        with log.open("ab") as output:
            super().__init__(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env={**environment, **numbers, "PYTHONPATH": path},
                pass_fds=[*inherited.values()],
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`; the message of its error has the end of the log."""
        try:
            return super().wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise subprocess.TimeoutExpired(f"{error.cmd} ({self.said})", error.timeout) from None

    def kill(self) -> None:
        super().kill()
        self.wait()


def command(words: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path | None = None) -> Command:
    return Command("tokenmill.app.cli", words, log, {**os.environ, **environment}, directory=directory)


class Ended(NamedTuple):
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


def die_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let side processes end before they read anything; the command line of this process is long."""
    ensure_running()
    monkeypatch.setattr(spawn, "_python_exe", b"/bin/true")
    monkeypatch.setattr(sys, "argv", ["tokenmill", *["a path" * 100] * 1000])
