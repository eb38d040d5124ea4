"""SIGKILL before and after every step: of a message in the mill, and of a store's writer, call by call.

The writer, in a process of its own, is killed or refused from outside, by strace: nothing in the process knows of it.
Before the first call that changes anything is after nothing, and before each other one is after the one before, so each
step is broken before and after. A real segment worker is, too, at single calls.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.app.segments.test_token_partition import BLOCKS, Appending
from tests.conftest import TopicFactory
from tests.faults.conftest import Configured
from tests.faults.crashes import Recording
from tests.faults.failpoints import MILLING, RESUMING, SETTLING, SIDES, VARIABLE, Failpoint
from tests.faults.feeding import Feeder, document, flush_all, following
from tests.faults.oracle import assert_stores_again, judge
from tests.faults.scripted import STORE, Acknowledged, Script, assert_recovers, calm_store, whole_of
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send, service_settings
from tests.store.chains import SUFFIXES
from tokenmill.app.local.broker import Broker
from tokenmill.app.segments import token_partition as block_appender
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.store import Store


class Breakable(Service):
    """A service whose mills die, or stand still, at a failpoint, where they are given one."""

    entry = "tests.faults.failpoints"

    def mill_at(self, point: Failpoint) -> Worker:
        (mill,) = self.mill(environment={VARIABLE: str(point)})
        return mill

    def mill_until(self, point: Failpoint) -> None:
        """Start a mill that dies there; gone on return."""
        mill = self.mill_at(point)
        self.wait_until(lambda: not mill.running)
        assert mill.process.returncode == -signal.SIGKILL, f"{point}: {mill.log}"
        self.workers.remove(mill)


def points(steps: Sequence[str], trial: Trial) -> list[Failpoint]:
    """Return every point of the steps, each at a time of chance, in an order of chance.

    Resuming is done once a partition, everything else again and again.
    """
    when = {step: (1, 2) if step in (*SETTLING, *RESUMING) else (1, 2, 3, 7) for step in steps}
    found = [Failpoint(step, side, trial.rng.choice(when[step])) for step in steps for side in SIDES]
    trial.rng.shuffle(found)
    return found


@pytest.mark.fault("step-killed")
@pytest.mark.needs("minutes")
def test_mill_killed_at_any_step_loses_and_repeats_nothing(configured: Configured, trial: Trial) -> None:
    """One mill after the other dies at a step of a message's way; the last one finishes."""
    settings = configured(2, session_timeout=1.5, carry_seconds=0.2, splits={"train": 900, "dev": 100})
    found = [point for _ in range(trial.rounds(1, 3)) for point in points((*RESUMING, *MILLING), trial)]
    with Breakable(settings, settings.store.parent) as service:
        service.segment()
        with Feeder(settings, trial.rng, burst=2):
            for point in found[: trial.rounds(2, len(found))]:
                service.mill_until(point)
                trial.fired(f"mill SIGKILL {point.side} {point.step}")
        service.mill()
        judge(service, trial)


@pytest.mark.fault("step-killed")
@pytest.mark.needs("minutes")
def test_mill_killed_while_it_settles_a_stream_leaves_one_genesis(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """Nothing, or a genesis without its tokenizer, or both: the next mill finishes what is not there."""
    train_tokenizer(["a text of the mill and its wheel"], vocabulary_size=300).save(str(tmp_path / "tokenizer.json"))
    for number, point in enumerate(points(SETTLING, trial)[: trial.rounds(1, 4)]):
        directory = tmp_path / str(number)
        directory.mkdir()
        own = {"store": directory / "store", "tokenizer": str(tmp_path / "tokenizer.json")}
        settings = configured(2, session_timeout=1.5, splits={"train": 900, "dev": 100}, **own)
        send(settings, [Raw(document(trial.rng), trial.rng.randrange(2)) for _ in range(200)])
        flush_all(settings)
        with Breakable(settings, directory) as service:
            service.segment()
            service.mill_until(point)
            trial.fired(f"mill SIGKILL {point.side} {point.step}")
            service.mill()
            judge(service, trial)


CALLS: Final = ("pwrite64", "fdatasync", "fsync", "rename")
"""What a worker calls all the time, and for its store alone."""


@pytest.mark.fault("step-killed", "sync-failed", "disk-full")
@pytest.mark.needs("strace")
def test_a_worker_that_ends_at_any_call_leaves_what_the_next_one_continues(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """By SIGKILL, or by itself after an error of the disk; a reader follows all the while."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, splits={"train": 1000})
    with Service(settings, tmp_path) as service:
        service.mill()
        with Feeder(settings, trial.rng, burst=1), following(settings.store) as reader:
            for number in range(trial.rounds(3, 12)):
                worker = service.segment()
                if trial.rng.random() < 0.5:  # else strace is there while it recovers
                    service.wait_until(lambda: any(p["block"] for p in worker.partitions.values()))  # noqa: B023
                what = trial.rng.choice(["signal=KILL", "error=EIO", "error=ENOSPC"])
                call, when = trial.rng.choice(CALLS), trial.rng.randint(1, 6)  # by then some segments are sealed
                options = ("-e", f"trace={call}", injection(call, what, when))
                calls = tmp_path / f"calls-{number}"
                with stracing(worker.process.pid, calls, *options):
                    service.wait_until(lambda: not worker.running or "(INJECTED)" in calls.read_text())  # noqa: B023
                service.wait_until(lambda: not worker.running or "waiting for the disk" in worker.log)  # noqa: B023
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
    trial.held("loud", "reader", read=sum(map(len, reader.values())))


CHANGING: Final = (
    *("openat", "mkdir", "rename", "link", "unlink", "pwrite64", "truncate", "ftruncate"),
    *("fsync", "fdatasync", "flock"),
)
"""All by which the store's writer changes, syncs and locks files; `openat` also for reading them."""
_CALL: Final = re.compile(r"(?:\d+ +)?(\w+)\((.*)")


class Call(NamedTuple):
    name: str
    arguments: str


@contextmanager
def stracing(process: int, output: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Watch a process and its threads from now on; inside the block strace is attached."""
    command = ["strace", "-f", "-qq", "-y", "-o", str(output), *options, "-p", str(process)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as strace:
        deadline = time.monotonic() + 30.0
        while not all(_is_traced(task) for task in Path(f"/proc/{process}/task").glob("*")):
            assert strace.poll() is None, (strace.stderr.read() if strace.stderr else b"").decode()
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.005)
        try:
            yield strace
        finally:
            strace.terminate()
            try:
                strace.wait(10.0)
            except subprocess.TimeoutExpired:  # now and then it waits for a thread of a process that has ended
                strace.kill()


def injection(call: str, what: str, when: int) -> str:
    """Return strace's option for something that happens at the ``when``-th such call of a thread."""
    return f"--inject={call}:{what}:when={when}"


def calls_in(output: Path) -> list[Call]:
    found = (_CALL.match(line) for line in output.read_text(errors="replace").splitlines())
    return [Call(match[1], match[2]) for match in found if match]


def _is_traced(task: Path) -> bool:
    try:
        return "TracerPid:\t0\n" not in (task / "status").read_text()
    except OSError:  # a thread that ended meanwhile
        return True


ROOT: Final = Path(__file__).parents[2]
NAMES: Final = {"openat": "open", "pwrite64": "pwrite"}  # what `os` calls them
ERRORS: Final = {"openat": ("EMFILE", "EIO"), "flock": ("EINTR",)}
"""The errors that a call is refused with, where these are not `USUAL_ERRORS`."""
USUAL_ERRORS: Final = ("ENOSPC", "EIO", "EINTR")


Run = Callable[..., tuple[Path, int, list[Call]]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return what lives a life in a new directory; it returns that, the exit code, and the calls that strace saw."""
    runs = itertools.count()
    command = [sys.executable, "-m", "tests.faults.scripted"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:

        def live(*options: str) -> tuple[Path, int, list[Call]]:
            root = tmp_path / f"root-{next(runs)}"
            root.mkdir()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{root}\n")
            child, output = int(process.stdout.readline()), root.with_suffix(".calls")
            with stracing(child, output, "-e", f"trace={','.join(CHANGING)}", *options):
                process.stdin.write("go\n")
                status = int(process.stdout.readline())
            return root, os.waitstatus_to_exitcode(status), calls_in(output)

        yield live


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    return calm_store(tmp_path / "calm")


def said_in(root: Path) -> tuple[Acknowledged, list[str]]:
    lines = [json.loads(line) for line in (root / "said").read_text().splitlines()]
    errors = [line.pop("error") for line in lines if "error" in line]
    return Acknowledged(**lines[-1]) if lines else Acknowledged(), errors


def is_recorded(call: Call, root: Path) -> bool:
    """Whether a call is one that `Recording` notes."""
    if str(root) not in call.arguments or call.name == "flock":
        return False
    return call.name != "openat" or "O_CREAT" in call.arguments or "O_TRUNC" in call.arguments


@pytest.mark.fault("step-killed")
@pytest.mark.needs("strace")
def test_killed_at_every_call_a_writer_loses_nothing(
    run: Run, tmp_path: Path, trial: Trial, whole: dict[str, bytes]
) -> None:
    """What had been said to be durable is there, and whoever comes next makes the same files."""
    root, code, calls = run()
    assert code == 0
    seen = [NAMES.get(call.name, call.name) for call in calls if is_recorded(call, root)]
    recording = Recording(tmp_path / "recorded")
    recording.root.mkdir()
    with recording.running():
        Script(recording.root).run()
    assert seen == recording.calls, "what is recorded in process is not all that a process does"
    for name, times in Counter(call.name for call in calls).items():
        for when in range(1, times + 1):
            root, code, calls = run(injection(name, "signal=KILL", when))
            assert code == -signal.SIGKILL
            assert Counter(call.name for call in calls)[name] == when
            trial.fired(f"SIGKILL at {name}")
            said, _ = said_in(root)
            assert_recovers(root, said, whole)
    trial.held("exact", "complete", "reader", "alive")


@pytest.mark.fault("sync-failed", "disk-full", "disk-gone")
@pytest.mark.needs("strace")
def test_refused_any_call_a_writer_says_so_and_the_next_one_goes_on(
    run: Run, trial: Trial, whole: dict[str, bytes]
) -> None:
    """Each call once fails with each error that it can have: one typed error, and the same files at the end."""
    _, _, plain = run()
    for name, times in Counter(call.name for call in plain).items():
        for error in ERRORS.get(name, USUAL_ERRORS):
            for when in range(1, times + 1):
                root, code, calls = run(injection(name, f"error={error}", when))
                assert code == 0, (name, error, when, said_in(root))
                assert any("INJECTED" in call.arguments for call in calls)
                said, errors = said_in(root)
                assert len(errors) == said.starts <= 1
                assert all("by itself" in text or "cannot be read" in text for text in errors), errors
                trial.fired(f"{error} at {name}")
                assert whole_of(Store.open(root / STORE)) == whole
    trial.held("exact", "complete", "loud", "alive")


DAY: Final = 86_400.0


def jumping(trial: Trial) -> Callable[[], float]:
    """Return a clock that is at most a day off, each time another way."""
    now = time.time

    def clock() -> float:
        trial.fired("jumps of the clock")
        return now() + trial.rng.uniform(-DAY, DAY)

    return clock


@pytest.mark.fault("clock-moved")
async def test_segments_are_the_same_whatever_the_clock_says(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition appended, committed, sealed twice: by a steady clock, and by one that jumps at every look."""
    monkeypatch.setattr(block_appender, "COMMIT_SECONDS", 0.0)
    found = []
    name = topic()
    for place in ("steady", "jumping"):
        settings = service_settings(broker, name, tmp_path / place, splits={"train": 1000}, segment_blocks=4)
        appending = await Appending.begin(settings)
        with monkeypatch.context() as patch:
            if place == "jumping":
                patch.setattr(time, "time", jumping(trial))
            for first in range(BLOCKS):
                await appending.feed(first, first + 1)
            await appending.end()
        assert appending.stored == BLOCKS
        (directory,) = settings.store.glob("*/0")
        found.append({file.name: file.read_bytes() for file in directory.iterdir() if file.suffix[1:] in SUFFIXES})
    assert len(found[0]) == 2 * len(SUFFIXES)
    assert found[0] == found[1]
    trial.held("exact", "complete")
