"""Scripts that train, as forks of the test's process, which has loaded torch: a new Python would for two seconds.

A fork is a process as a new one would be, with outputs of its own, and ends as one; what the script imports is there
already, so a fork does not show that the script imports all that it needs. A new Python runs the README's snippets, the
demo's training and torchrun's, and loads the labs (`tests/examples/test_labs.py`).
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, Self, cast

import torch

from tokenmill.app import processes

ROOT: Final = Path(__file__).parents[1]
SEED: Final = torch.default_generator.initial_seed()
"""What torch's random numbers begin with in a new Python."""
LATE: Final = "torch._dynamo"
"""What any optimizer loads, for a second; here it is loaded once."""


class Script:
    """A script that runs, with the methods of `subprocess.Popen` that tests of trainers use; killed with the block."""

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str | Path],
        output: Path,
        errors: Path | None = None,
        stdin: int | None = None,
    ) -> None:
        """Start it. What it writes goes to the ends of ``output`` and ``errors``, or to that of ``output`` alone."""
        import_module(LATE)
        for path in (output, errors or output):
            path.touch()
        context = multiprocessing.get_context("fork")
        given = (script, [*map(str, arguments)], output, errors or output, stdin)
        self._process = context.Process(target=_become, args=given)
        with warnings.catch_warnings():
            # Python 3.12 says that a process with threads is forked; none of them holds what the script needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return cast("int", self._process.pid)

    def poll(self) -> int | None:
        """Return the exit code, the negative number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises `subprocess.TimeoutExpired`."""
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        self._process.join()
        return cast("int", self.poll())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def run_code(code: str, arguments: Sequence[str | Path], folder: Path) -> str:
    """Run code as a script, which must succeed; return what it prints. Its files are left in ``folder``."""
    script, printed, said = (folder / name for name in ("script.py", "printed", "said"))
    script.write_text(code)
    with Script(script, arguments, printed, said) as process:
        assert process.wait() == 0, said.read_text()
    return printed.read_text()


def _become(script: Path, arguments: list[str], output: Path, errors: Path, stdin: int | None) -> None:
    """Be what a new Python is that was given a script, then run it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    to = [os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) for path in (output, errors)]
    for number, here in enumerate((nothing if stdin is None else stdin, *to)):
        os.dup2(here, number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in enumerate(("r", "w", "w"))
    )
    torch.set_num_threads(1)  # the threads that the test's process may have had are not here
    torch.manual_seed(SEED)
    processes.STARTING = multiprocessing.get_context("spawn")  # the tests' own server has no children here
    sys.argv = [str(script), *arguments]
    sys.path[:] = [str(script.parent), *(path for path in sys.path if path and Path(path) != ROOT)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        with suppress(OSError):
            sys.stdout.flush()
