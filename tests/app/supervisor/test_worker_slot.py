"""A worker's place: real processes that are heard and ended, and scripted ones that die, fall silent and come again."""

import asyncio
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast
from unittest.mock import AsyncMock

import pytest

from tests.app.conftest import until
from tests.outages import Hands
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor import worker_slot as post_module
from tokenmill.app.supervisor.supervisor import Supervisor
from tokenmill.app.supervisor.worker_slot import Child, WorkerSlot
from tokenmill.app.telemetry.reporting import HEARTBEAT_VARIABLE, STORE_VARIABLE
from tokenmill.app.worker.in_flight import RecordsInFlight
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import BrokerError, FingerprintError, StoreError, TokenMillError

BEGINNING: Final = f"""
import json, os, signal, sys, time
pipe = int(os.environ["{HEARTBEAT_VARIABLE}"])
def say(**what):
    os.write(pipe, json.dumps(what).encode() + b"\\n")
"""
"""What each script begins with."""


def state_of(pid: int) -> str:
    """Return what the kernel says that a process does: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def start(script: str, log: Path | None = None) -> Child:
    return await Child.start([sys.executable, "-c", BEGINNING + script], dict(os.environ), log)


async def test_all_that_a_process_said_is_heard_when_its_end_is_known() -> None:
    """Its last words are in the pipe for longer than it lives: here another process writes them after its end."""
    child = await start("""
process = os.getpid()
if os.fork():
    os._exit(75)
try:
    while True:  # until somebody has asked for its exit code
        os.kill(process, 0)
        time.sleep(0.01)
except ProcessLookupError:
    time.sleep(0.2)
say(ready=True)
say(ends="the disk is gone")
""")
    assert await child.wait() == 75
    assert child.words == "the disk is gone"
    assert child.status == {"ready": True}
    assert child.beats == 2


async def test_a_line_that_is_no_status_is_a_sign_of_life_and_outputs_are_appended_to_the_log(tmp_path: Path) -> None:
    """A full pipe may cut a line: what is whole counts, and nothing that is cut ends the listening."""
    (tmp_path / "log").write_text("before\n")
    outputs = "print('out', flush=True); print('err', file=sys.stderr)"
    beats = r"""os.write(pipe, b'{"ready": tr\n\xff\xfe\n'); say(ready=True, position=3)"""
    child = await start(f"{beats}; {outputs}", tmp_path / "log")
    assert await child.wait() == 0
    assert (child.status, child.beats, child.words) == ({"ready": True, "position": 3}, 3, None)
    assert (tmp_path / "log").read_text() == "before\nout\nerr\n"


async def test_a_process_that_is_told_to_end_may_end_in_order() -> None:
    """SIGTERM first, also to one that somebody has stopped: it is woken for that."""
    child = await start("""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
say(ready=True)
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
""")
    await until(lambda: state_of(child.pid) == "T")
    assert await child.end(grace=60.0) == 7


async def test_a_process_that_does_not_end_is_killed_after_the_grace() -> None:
    child = await start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(ready=True)\nwhile True: signal.pause()")
    await until(lambda: child.beats)
    assert await child.end(grace=0.05) == -signal.SIGKILL


@pytest.mark.slow
async def test_what_a_dead_process_was_milling_is_known() -> None:
    """Its notes lie in memory that is ours as well; what it had done is not among them."""
    child = await start("""
from tokenmill.app.worker.in_flight import Board, Note
board = Board.inherited()
done, at_work = Note("raw", 1, board), Note("raw", 3, board)
done(1, 9); at_work(8, 12); at_work(10, 12); done.done()
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert await child.wait() == -signal.SIGKILL
    assert list(child.board.records_in_flight()) == [RecordsInFlight("raw", 3, 10, 12)]


async def test_a_start_that_lacks_descriptors_fails_as_a_whole_and_leaves_nothing(tmp_path: Path) -> None:
    """Whichever step has none left: the error is the system's, nothing stays open, and with enough it starts."""
    child = await start("say(ready=True)")  # what the event loop opens once is open
    assert await child.wait() == 0
    child.board.close()
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    lowest = next(number for number in range(allowed[0]) if number not in before)  # the next one that is given
    refused = 0
    for more in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, allowed[1]))
        try:
            child = await start("say(ready=True)", tmp_path / "log")
        except OSError:
            refused += 1
        else:
            assert await child.wait() == 0
            child.board.close()
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        await asyncio.sleep(0)  # a transport closes at the loop's next turn
        assert descriptors() <= before  # what others left to the collector of garbage may close meanwhile
    assert child.status == {"ready": True}
    assert refused > 3


async def test_a_start_that_lacks_a_thread_is_the_systems_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has another kind of error for it, which would have ended the supervisor."""
    refuse = AsyncMock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(BlockingIOError, match="can't start new thread"):
        await start("")


def descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as found:
        own = {int(entry.name) for entry in found}
    return {number for number in own if Path(f"/proc/self/fd/{number}").exists()}


@dataclass
class Life:
    """What one scripted process does: it lives for ``seconds`` of the clock, then ends with ``code``.

    One with ``beats`` says these, one at each look, and goes on silently; only a signal ends it, as one ``for_ever``.
    """

    seconds: float = 0.0
    code: int = 1
    words: str | None = None
    beats: Sequence[Mapping[str, Any]] = ()
    for_ever: bool = False
    refused: OSError | None = None
    """What the system refuses the start with; there is no life then."""
    killed: str | None = None
    """The supervisor's verdict on it, in the middle of its life."""


class ScriptedChild:
    """In the place of `Child`: what a slot sees of a process, by a script."""

    def __init__(self, pid: int, life: Life, script: "Script") -> None:
        self.pid = pid
        self.words = life.words
        self.status: Mapping[str, Any] = {}
        self.beats = 0
        self.signals: list[signal.Signals] = []
        self._life, self._script, self._code = life, script, life.code
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        if self._life.killed is not None:
            self._script.slot.kill(self._life.killed)
        for beat in self._life.beats:
            self._script.noticed.clear()
            self.beat(beat)
            await self._script.noticed.wait()
        if self._life.for_ever or self._life.beats:
            await self._ended.wait()
        self._script.clock.now += self._life.seconds
        return self._code

    def beat(self, status: Mapping[str, Any]) -> None:
        self.status = status
        self.beats += 1

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self._code = -number
            self._ended.set()

    async def end(self, grace: float) -> int:
        self._script.graces.append(grace)
        return 0


class Script:
    """Lives, one after the other, at one slot; and all that the slot tells of them."""

    def __init__(self, lives: Sequence[Life], limits: WatchLimits) -> None:
        self.lives, self.clock = list(lives), Hands()
        self.told = list[tuple[str, float | None]]()
        """Why each process ended, and the pause before the next."""
        self.heard_statuses, self.environments = list[Mapping[str, Any]](), list[Mapping[str, str]]()
        self.children, self.graces = list[ScriptedChild](), list[float]()
        self.noticed, self.over = asyncio.Event(), asyncio.Event()
        """A status was heard; a process starts that no life is written for."""
        listener = cast("Supervisor", self)
        self.slot = WorkerSlot("mill", "mill-1", listener, settings=Settings(), limits=limits, log=None)

    async def start(self, _command: object, environment: Mapping[str, str], *_: object) -> ScriptedChild:
        self.environments.append(dict(environment))
        if not self.lives:
            self.over.set()
        life = self.lives.pop(0) if self.lives else Life(for_ever=True)
        if life.refused is not None:
            raise life.refused
        self.children.append(ScriptedChild(len(self.children) + 1, life, self))
        return self.children[-1]

    def not_started(self, _post: WorkerSlot, reason: str, pause: float) -> None:
        self.told.append((reason, pause))

    def started(self, *_: object) -> None:
        """Take no note."""

    def heard(self, _post: WorkerSlot, child: Child) -> None:
        self.heard_statuses.append(child.status)
        self.noticed.set()

    def ended(self, _post: WorkerSlot, _child: Child, reason: str, pause: float | None) -> None:
        self.told.append((reason, pause))

    async def play(self) -> Self:
        keeping = asyncio.ensure_future(self.slot.keep())
        over = asyncio.ensure_future(self.over.wait())
        await asyncio.wait({keeping, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if keeping.done():
            await keeping
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return self


StageOf = Callable[..., Script]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> StageOf:
    """Return what makes a script of lives: neither its processes nor its time are real, the slot is."""
    monkeypatch.setattr(post_module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(post_module, "CONTACT", Hands().contact())  # a broker answers, whatever other tests did

    def make(*lives: Life, **limits: float) -> Script:
        made = Script(lives, WatchLimits(**limits))
        monkeypatch.setattr(post_module, "time", made.clock)
        monkeypatch.setattr(Child, "start", made.start)
        return made

    return make


async def test_each_life_is_counted_from_its_own_start(script: StageOf) -> None:
    lives = [Life(10.0)] * 7 + [Life(61.0), Life(1.0)]
    played = await script(*lives, healthy=60.0, first_backoff=0.001, longest_backoff=0.02).play()
    assert [pause for _, pause in played.told[:-1]] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.001, 0.002]
    assert played.slot.restarts["error"] == 9
    assert played.slot.starts == 10


async def test_a_start_that_the_system_refuses_is_tried_again(script: StageOf) -> None:
    refusals = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EAGAIN, "try again")] * 3
    lives = [Life(refused=error) for error in refusals] + [Life(61.0)]
    played = await script(*lives, healthy=60.0, first_backoff=0.001, longest_backoff=0.004).play()
    assert [pause for _, pause in played.told[:-1]] == [0.001, 0.002, 0.004, 0.004, 0.004, 0.004, 0.001]
    assert played.told[0][0] == "[Errno 24] Too many open files"
    assert +played.slot.restarts == {"not started": 6, "error": 1}
    assert (played.slot.starts, played.slot.next_start) == (2, None)


async def test_a_verdict_ends_with_the_process_that_it_was_spoken_on(script: StageOf) -> None:
    lives = Life(killed="it stands still", for_ever=True), Life(code=75, words="the source moved")
    played = await script(*lives, first_backoff=0.001).play()
    assert [reason for reason, _ in played.told[:-1]] == ["it stands still", "exit code 75: the source moved"]
    assert +played.slot.restarts == {"watchdog": 1, "resume": 1}


async def test_a_process_that_falls_silent_is_killed(script: StageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_module, "LOOK_SECONDS", 0.01)
    beats = [{"ready": True}] * 3
    played = await script(Life(beats=beats), heartbeat=0.05, start=0.1, first_backoff=0.001).play()
    assert played.told[0][0] == "no heartbeat for 0 s"
    assert played.children[0].signals == [signal.SIGKILL]
    assert len(played.heard_statuses) == 3


async def test_a_process_that_is_not_ready_yet_gets_more_time(script: StageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads a tokenizer; but not for ever."""
    monkeypatch.setattr(post_module, "LOOK_SECONDS", 0.5)
    slot = script(heartbeat=20.0, start=120.0).slot
    waiting: Any = ScriptedChild(1, Life(), script())
    ready: Any = ScriptedChild(2, Life(), script())
    ready.beat({"ready": True})
    for child, looks in ((waiting, 240), (ready, 40)):
        slot.child, slot._silent_looks = child, 0
        for _ in range(looks - 1):
            slot._hear(child, child.beats)
        assert child.signals == []
        slot._hear(child, child.beats)
        assert child.signals == [signal.SIGKILL]


def test_a_ready_process_that_missed_beats_is_shown_as_silent(script: StageOf) -> None:
    slot = script().slot
    child: Any = ScriptedChild(1, Life(), script())
    slot.child = child
    for _ in range(10):
        slot._hear(child, child.beats)
    assert slot.state == "starting"
    child.beat({"ready": True})
    for silent, expected in enumerate(["running"] * 4 + ["silent"]):
        slot._hear(child, child.beats if silent else 0)
        assert slot.state == expected


async def test_the_next_worker_is_told_which_store_the_last_one_filled(script: StageOf) -> None:
    """So it waits for a disk that is not mounted."""
    life = Life(beats=[{"ready": True, "store": "0123"}])
    played = await script(life, heartbeat=0.003, start=0.003, first_backoff=0.001).play()
    assert [variables.get(STORE_VARIABLE) for variables in played.environments] == [None, "0123"]


@pytest.mark.parametrize("error", [FingerprintError, StoreError])
async def test_what_a_new_start_cannot_mend_ends_the_post(script: StageOf, error: type[TokenMillError]) -> None:
    played = script(Life(code=error.exit_code, words="use another name"))
    with pytest.raises(error, match="mill-1 cannot go on: use another name"):
        await played.play()
    assert played.told == [(f"exit code {error.exit_code}: use another name", None)]
    assert (played.slot.starts, played.slot.restarts.total()) == (1, 0)


async def test_a_post_that_is_cancelled_ends_its_process_in_order(script: StageOf) -> None:
    played = await script(grace=3.5).play()
    assert (played.graces, played.told) == ([3.5], [("exit code 0", None)])
    slot = played.slot
    assert (slot.stopping, slot.child, slot.restarts.total()) == (True, None, 0)


async def test_a_process_is_not_relied_on_where_others_have_just_ended_again_and_again(script: StageOf) -> None:
    moments, words = [Life(1.0)] * 3, "mill-1 has ended 3 times in a row, the last time with exit code 1"
    away = [Life(1.0, code=BrokerError.exit_code)] * 3
    for lives, lived, expected in (
        (moments, 0.0, words), (moments, post_module.STEADY_SECONDS, None), (away, 0.0, None),
        ([Life(1.0), Life(61.0), Life(1.0)], 0.0, None),
    ):  # fmt: skip
        played = await script(*lives, healthy=60.0, first_backoff=0.001).play()
        played.slot._started = played.clock.monotonic() - lived
        assert played.slot.failing == expected
