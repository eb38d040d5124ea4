"""Workers' processes are what new ones would be: their own session, environment, output, and end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.forked import Forked

pytestmark = pytest.mark.slow  # the process that all others are forks of loads a worker


def started(log: Path, *arguments: str) -> tuple[Forked, str]:
    """Start `tests.saying`; return it, and what it wrote into a pipe that it inherits."""
    ours, its = os.pipe()
    process = Forked("tests.saying", arguments, log, {"HOME": "/"}, inherited={"PIPE": its}, directory=log.parent)
    os.close(its)
    with os.fdopen(ours) as pipe:
        return process, pipe.read()  # to the end: nobody else has the other end open


def test_a_process_has_what_it_is_given_and_nothing_else(tmp_path: Path) -> None:
    """Arguments, environment, a descriptor, a directory; its output is behind what the log has, and its code is told.

    The module was not loaded again, nor had its parent a thread that a fork would be without.
    """
    log = tmp_path / "log"
    log.write_text("before\n")
    process, said = started(log, "end", "now")
    assert process.wait(60) == process.poll() == process.returncode == 7
    assert said == "through the pipe"
    first, *lines = log.read_text().splitlines()
    assert (first, sorted(lines)) == ("before", ["an error", f"end now ['HOME', 'PIPE'] True {tmp_path}", "loaded 1"])


def test_a_process_ends_by_a_signal(tmp_path: Path) -> None:
    """Which its code tells; until then it runs, and afterwards no signal is an error."""
    process, _ = started(tmp_path / "log", "wait")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    process.send_signal(signal.SIGKILL)
