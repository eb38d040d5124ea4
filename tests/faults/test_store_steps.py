"""A store's writer, in a process of its own, is killed or refused at each single call by which it changes files.

From outside, by strace: nothing in the process knows of it. Before the first call that changes anything is after
nothing, and before each other one is after the one before, so each step is broken before and after. A real segment
worker is, too, at single calls.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.conftest import TopicFactory
from tests.faults.alive import assert_stores_again
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.recording import Recording
from tests.faults.scripted import STORE, Acknowledged, Script, assert_recovers, calm_store, whole_of
from tests.faults.store_follower import Following
from tests.faults.trial import Trial
from tests.service import Service, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.store import Store

CALLS: Final = ("pwrite64", "fdatasync", "fsync", "rename")
"""What a worker calls all the time, and for its store alone."""
FURTHEST: Final = 6
"""At most so many calls of a thread later: some segments are sealed by then."""

WAITS: Final = "waiting for the disk"


@pytest.mark.fault("step-killed", "sync-failed", "disk-full")
@pytest.mark.needs("strace")
def test_a_worker_that_ends_at_any_call_leaves_what_the_next_one_continues(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """By SIGKILL, or by itself after an error of the disk; a reader follows all the while."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, splits={"train": 1000})
    with Service(settings, tmp_path) as service:
        service.mill()
        with Feeder(settings, trial.rng, burst=1), Following(settings.store) as reader:
            for number in range(trial.rounds(3, 12)):
                worker = service.segment()
                if trial.rng.random() < 0.5:  # else strace is there while it recovers
                    service.wait_until(lambda: any(p["block"] for p in worker.partitions.values()))  # noqa: B023
                what = trial.rng.choice(["signal=KILL", "error=EIO", "error=ENOSPC"])
                call, when = trial.rng.choice(CALLS), trial.rng.randint(1, FURTHEST)
                options = ("-e", f"trace={call}", injection(call, what, when))
                calls = tmp_path / f"calls-{number}"
                with stracing(worker.process.pid, calls, *options):
                    service.wait_until(lambda: not worker.running or "(INJECTED)" in calls.read_text())  # noqa: B023
                service.wait_until(lambda: not worker.running or WAITS in worker.log)  # noqa: B023
                trial.fired(f"{what} at {call}" + (", and the worker waited" if worker.running else ""))
                if worker.running:  # it could not be opened: that heals without a new start
                    worker.kill()
                    assert "tries again by itself" in worker.log
                elif what == "signal=KILL":
                    assert worker.process.returncode == -signal.SIGKILL
                else:
                    assert service.wait_until_ended(worker) == RESUME_CODE
                    assert "tries again by itself" in (worker.beats.words or "")
                service.workers.remove(worker)
            service.segment()
            assert_stores_again(service, trial)
        judge(service, trial)
    trial.held("loud", "reader", read=reader.blocks)


ATTACH_SECONDS: Final = 30.0
END_SECONDS: Final = 10.0
CHANGING: Final = (
    *("openat", "mkdir", "rename", "link", "unlink", "pwrite64", "truncate", "ftruncate"),
    *("fsync", "fdatasync", "flock"),
)
"""All by which the store's writer changes, syncs and locks files; `openat` also for reading them."""
_CALL: Final = re.compile(r"(?:\d+ +)?(\w+)\((.*)")


class Call(NamedTuple):
    """One call, as strace shows it."""

    name: str
    arguments: str


@contextmanager
def stracing(process: int, output: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Watch a process and its threads from now on; inside the block strace is attached."""
    command = ["strace", "-f", "-qq", "-y", "-o", str(output), *options, "-p", str(process)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as strace:
        deadline = time.monotonic() + ATTACH_SECONDS
        while not all(_is_traced(task) for task in Path(f"/proc/{process}/task").glob("*")):
            assert strace.poll() is None, (strace.stderr.read() if strace.stderr else b"").decode()
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.005)
        try:
            yield strace
        finally:
            strace.terminate()
            try:
                strace.wait(END_SECONDS)
            except subprocess.TimeoutExpired:  # now and then it waits for a thread of a process that has ended
                strace.kill()


def injection(call: str, what: str, when: int) -> str:
    """Return strace's option for something that happens at the ``when``-th such call of a thread."""
    return f"--inject={call}:{what}:when={when}"


def calls_in(output: Path) -> list[Call]:
    """Return what strace saw."""
    found = (_CALL.match(line) for line in output.read_text(errors="replace").splitlines())
    return [Call(match[1], match[2]) for match in found if match]


def _is_traced(task: Path) -> bool:
    try:
        return "TracerPid:\t0\n" not in (task / "status").read_text()
    except OSError:  # a thread that ended meanwhile
        return True


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
