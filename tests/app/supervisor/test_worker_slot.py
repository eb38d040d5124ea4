"""A worker's place: when its process counts as dead, how soon the next one comes, and with what it ends for good."""

import asyncio
import errno
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import pytest

from tests.outages import Hands
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor import worker_slot as post_module
from tokenmill.app.supervisor.supervisor import Supervisor
from tokenmill.app.supervisor.worker_slot import Child, WorkerSlot
from tokenmill.app.telemetry.reporting import STORE_VARIABLE
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import BrokerError, FingerprintError, StoreError, TokenMillError

SETTINGS = Settings()


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


@dataclass
class Script:
    """Lives, one after the other, at one slot; and all that the slot tells of them."""

    lives: list[Life]
    clock: Hands
    limits: WatchLimits
    told: list[tuple[str, float | None]] = field(default_factory=list)
    """Why each process ended, and the pause before the next."""
    heard_statuses: list[Mapping[str, Any]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)
    children: list[ScriptedChild] = field(default_factory=list)
    graces: list[float] = field(default_factory=list)
    noticed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a process starts that no life is written for."""

    def __post_init__(self) -> None:
        self.slot = WorkerSlot(
            "mill", "mill-1", cast("Supervisor", self), settings=SETTINGS, limits=self.limits, log=None
        )

    async def start(
        self, _command: Sequence[str], environment: Mapping[str, str], _log: Path | None, _shared: Mapping[str, int]
    ) -> Child:
        self.environments.append(dict(environment))
        if not self.lives:
            self.over.set()
        life = self.lives.pop(0) if self.lives else Life(for_ever=True)
        if life.refused is not None:
            raise life.refused
        self.children.append(ScriptedChild(len(self.children) + 1, life, self))
        return cast("Child", self.children[-1])

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
        made = Script(list(lives), Hands(), WatchLimits(**limits))
        monkeypatch.setattr(post_module, "time", made.clock)
        monkeypatch.setattr(Child, "start", made.start)
        return made

    return make


async def test_each_life_is_counted_from_its_own_start(script: StageOf) -> None:
    """Short lives make the pauses longer, however long ago the first one began; a healthy one makes them short."""
    lives = [Life(10.0)] * 7 + [Life(61.0), Life(1.0)]
    played = await script(*lives, healthy=60.0, first_backoff=0.001, longest_backoff=0.02).play()
    assert [pause for _, pause in played.told[:-1]] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.001, 0.002]
    assert played.slot.restarts["error"] == 9
    assert played.slot.starts == 10


async def test_a_start_that_the_system_refuses_is_tried_again(script: StageOf) -> None:
    """Later each time, however often, under a cause of its own; in the end a process runs, and its life counts anew."""
    refusals = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EAGAIN, "try again")] * 3
    lives = [Life(refused=error) for error in refusals] + [Life(61.0)]
    played = await script(*lives, healthy=60.0, first_backoff=0.001, longest_backoff=0.004).play()
    assert [pause for _, pause in played.told[:-1]] == [0.001, 0.002, 0.004, 0.004, 0.004, 0.004, 0.001]
    assert played.told[0][0] == "[Errno 24] Too many open files"
    assert +played.slot.restarts == {"not started": 6, "error": 1}
    assert (played.slot.starts, played.slot.next_start) == (2, None)


async def test_a_verdict_ends_with_the_process_that_it_was_spoken_on(script: StageOf) -> None:
    """The next process, which ends of itself, is told with its own reason and counted under its own cause."""
    played = await script(
        Life(killed="it stands still", for_ever=True), Life(code=75, words="the source moved"), first_backoff=0.001
    ).play()
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
    waiting = ScriptedChild(1, Life(), script())
    ready = ScriptedChild(2, Life(), script())
    ready.beat({"ready": True})
    for child, looks in ((waiting, 240), (ready, 40)):
        slot.child, slot._silent_looks = cast("Child", child), 0
        for _ in range(looks - 1):
            slot._hear(cast("Child", child), child.beats)
        assert child.signals == []
        slot._hear(cast("Child", child), child.beats)
        assert child.signals == [signal.SIGKILL]


def test_a_ready_process_that_missed_beats_is_shown_as_silent(script: StageOf) -> None:
    slot = script().slot
    child = ScriptedChild(1, Life(), script())
    slot.child = cast("Child", child)
    for _ in range(10):
        slot._hear(cast("Child", child), child.beats)
    assert slot.state == "starting"
    child.beat({"ready": True})
    for silent, expected in enumerate(["running"] * 4 + ["silent"]):
        slot._hear(cast("Child", child), child.beats if silent else 0)
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
    assert played.slot.starts == 1
    assert played.slot.restarts.total() == 0


async def test_a_post_that_is_cancelled_ends_its_process_in_order(script: StageOf) -> None:
    played = await script(grace=3.5).play()
    assert played.graces == [3.5]
    assert played.told == [("exit code 0", None)]
    assert played.slot.stopping
    assert played.slot.child is None
    assert played.slot.restarts.total() == 0


async def test_a_process_is_not_relied_on_where_others_have_just_ended_again_and_again(script: StageOf) -> None:
    played = await script(*[Life(1.0)] * 3, healthy=60.0, first_backoff=0.001).play()
    slot, clock = played.slot, played.clock
    found = []
    for lived in (0.0, post_module.STEADY_SECONDS):
        slot._started = clock.monotonic() - lived
        found.append(slot.failing)
    assert found == ["mill-1 has ended 3 times in a row, the last time with exit code 1", None]
    steady = await script(Life(1.0), Life(61.0), Life(1.0), healthy=60.0, first_backoff=0.001).play()
    steady.slot._started = steady.clock.monotonic()
    assert steady.slot.failing is None
    away = await script(*[Life(1.0, code=BrokerError.exit_code)] * 3, first_backoff=0.001).play()
    away.slot._started = away.clock.monotonic()
    assert away.slot.failing is None
