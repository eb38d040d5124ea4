"""A store's writer, in a process of its own, is killed or refused at each single call by which it changes files.

From outside, by strace: nothing in the process knows of it. Before the first call that changes anything is after
nothing, and before each other one is after the one before, so each step is broken before and after.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.faults.recording import Recording
from tests.faults.scripted import STORE, Acknowledged, Script, assert_recovers, calm_store, whole_of
from tests.faults.stracing import CHANGING, Call, calls_in, injection, stracing
from tests.faults.trial import Trial
from tokenmill.store import Store

ROOT: Final = Path(__file__).parents[2]
NAMES: Final = {"openat": "open", "pwrite64": "pwrite"}
"""What `os` calls them."""
ERRORS: Final = {"openat": ("EMFILE", "EIO"), "flock": ("EINTR",)}
"""The errors that a call is refused with, where these are not the usual ones."""
USUAL_ERRORS: Final = ("ENOSPC", "EIO", "EINTR")


class StoreProcess:
    """Starts a script after the other, each with strace beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
        )
        self._runs = 0

    def run(self, *options: str) -> tuple[Path, int, list[Call]]:
        """Live a life in a new directory; return it, the exit code, and the calls that strace saw."""
        self._runs += 1
        root = self._directory / f"root-{self._runs}"
        root.mkdir()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{root}\n")
        child = int(self._process.stdout.readline())
        output = self._directory / f"calls-{self._runs}"
        with stracing(child, output, "-e", f"trace={','.join(CHANGING)}", *options):
            self._process.stdin.write("go\n")
            status = int(self._process.stdout.readline())
        return root, os.waitstatus_to_exitcode(status), calls_in(output)

    def end(self) -> None:
        """End the process that forks."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StoreProcess]:
    """Return a process that forks scripts; gone when the test ends."""
    process = StoreProcess(tmp_path)
    yield process
    process.end()


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of the scripted store where nothing fails."""
    return calm_store(tmp_path / "calm")


def said_in(root: Path) -> tuple[Acknowledged, list[str]]:
    """Return the last that the script said, and the errors that it named."""
    lines = [json.loads(line) for line in (root / "said").read_text().splitlines()]
    errors = [line.pop("error") for line in lines if "error" in line]
    return Acknowledged(**lines[-1]) if lines else Acknowledged(), errors


def is_recorded(call: Call, root: Path) -> bool:
    """Whether a call is one that `Recording` notes."""
    if str(root) not in call.arguments or call.name == "flock":
        return False
    opens = call.name == "openat"
    return not opens or ("/lock" not in call.arguments and ("O_CREAT" in call.arguments or "O_TRUNC" in call.arguments))


@pytest.mark.fault("step-killed")
@pytest.mark.needs("strace")
def test_killed_at_every_call_a_writer_loses_nothing(
    process: StoreProcess, tmp_path: Path, trial: Trial, whole: dict[str, bytes]
) -> None:
    """What had been said to be durable is there, and whoever comes next makes the same files."""
    root, code, calls = process.run()
    assert code == 0
    seen = [NAMES.get(call.name, call.name) for call in calls if is_recorded(call, root)]
    recording = Recording(tmp_path / "recorded")
    recording.root.mkdir()
    with recording.running():
        Script(recording.root).run()
    assert seen == recording.calls, "what is recorded in process is not all that a process does"
    for name, times in Counter(call.name for call in calls).items():
        for when in range(1, times + 1):
            root, code, calls = process.run(injection(name, "signal=KILL", when))
            assert code == -signal.SIGKILL
            assert Counter(call.name for call in calls)[name] == when
            trial.fired(f"SIGKILL at {name}")
            said, _ = said_in(root)
            assert_recovers(root, said, whole)
    trial.held("exact", "complete", "reader", "alive")


@pytest.mark.fault("sync-failed", "disk-full", "disk-gone")
@pytest.mark.needs("strace")
def test_refused_any_call_a_writer_says_so_and_the_next_one_goes_on(
    process: StoreProcess, trial: Trial, whole: dict[str, bytes]
) -> None:
    """Each call once fails with each error that it can have: one typed error, and the same files at the end."""
    _, _, plain = process.run()
    for name, times in Counter(call.name for call in plain).items():
        for error in ERRORS.get(name, USUAL_ERRORS):
            for when in range(1, times + 1):
                root, code, calls = process.run(injection(name, f"error={error}", when))
                assert code == 0, (name, error, when, said_in(root))
                assert any("INJECTED" in call.arguments for call in calls)
                said, errors = said_in(root)
                assert len(errors) == said.starts <= 1
                assert all("by itself" in text for text in errors)
                trial.fired(f"{error} at {name}")
                assert whole_of(Store.open(root / STORE)) == whole
    trial.held("exact", "complete", "loud", "alive")
