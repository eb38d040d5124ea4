"""What a supervisor makes of its workers' words, ends and standstills: the real one, with scripted processes."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.outages import Hands
from tokenmill.app.broker_contact import OutageLog
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor import supervisor as export_module
from tokenmill.app.supervisor import supervisor as supervisor_module
from tokenmill.app.supervisor.supervisor import Event, Supervisor
from tokenmill.app.supervisor.worker_slot import Child
from tokenmill.app.worker import watchdog as cluster_module
from tokenmill.app.worker.in_flight import Deaths, RecordsInFlight
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.store import Store

LIMITS = WatchLimits(unowned=30, still=60, resume=600)


class ScriptedChild:
    def __init__(self, pid: int, in_flight: list[RecordsInFlight]) -> None:
        self.pid = pid
        self.status: Mapping[str, Any] = {}
        self.board = SimpleNamespace(
            records_in_flight=lambda: in_flight, pardon=in_flight.clear, close=lambda: self.done.append("board closed")
        )
        self.done: list[Any] = []

    def signal(self, number: int) -> None:
        self.done.append(number)


class PartitionsSeen:
    """A supervisor of two mill workers and a segment worker; what a broker says is set by hand."""

    def __init__(self, directory: Path, only: Any = None, dedup: str = "none") -> None:
        self.settings = Settings(
            workers=2, store=directory / "store", splits={"all": 1000}, metrics_port=0, dedup=dedup
        )
        self.events: list[Event] = []
        self.supervisor = Supervisor(self.settings, only=only, limits=LIMITS, on_event=self.events.append)
        self.children: dict[str, ScriptedChild] = {}
        self.asked: list[tuple[str, Collection[str]]] = []
        self.elsewhere: dict[str, set[str]] = {}
        self.turns: list[str] = []
        self.supervisor._cluster.owned_by_others = self.owned_by_others  # type: ignore[method-assign]

    async def owned_by_others(self, group: str, ours: Collection[str]) -> set[str]:
        self.asked.append((group, ours))
        return self.elsewhere.get(group, set())

    def ends(self, **ends: int) -> None:
        """Let brokers say where partitions end; ``raw_0`` is partition 0 of the raw topic."""
        (stream,) = self.settings.streams()
        topics = {"raw": stream.raw_topic, "tokens": stream.tokens_topic, "signatures": "signatures.raw-text"}
        self.supervisor._cluster._ends = {
            f"{topics[name.split('_')[0]]}/{name.split('_')[1]}": (end, end) for name, end in ends.items()
        }

    def start(self, worker: str, in_flight: list[RecordsInFlight] | None = None) -> ScriptedChild:
        slot = self.supervisor._slots[worker]
        child = self.children[worker] = ScriptedChild(100 + len(self.children), in_flight or [])
        slot.child = cast("Child", child)
        slot.starts += 1
        self.supervisor.started(slot, slot.child)
        return child

    def say(self, worker: str, *partitions: str, position: int = 0, **more: Any) -> None:
        said = {name: {"position": position, "end": 9} for name in partitions}
        self.children[worker].status = {"ready": True, "member": worker, "partitions": said, **more}
        self.supervisor.heard(self.supervisor._slots[worker], cast("Child", self.children[worker]))

    def end(self, worker: str, pause: float | None = 2.0, *, stopping: bool = False) -> ScriptedChild:
        slot = self.supervisor._slots[worker]
        child, slot.child, slot.stopping = self.children.pop(worker), None, stopping
        self.supervisor.ended(slot, cast("Child", child), "exit code 1", pause)
        return child

    def told(self) -> list[tuple[str, str]]:
        """Return the events since the last call, without those of starts."""
        found: list[tuple[str, str]] = [(event.kind, event.text) for event in self.events if event.kind != "started"]
        self.events.clear()
        return found


class Clock:
    """The time of a guard: each sleep lets ten seconds pass, and the last one ends it."""

    def __init__(self, looks: int) -> None:
        self.now, self._looks = 0.0, looks

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, _seconds: float) -> None:
        self.now += 10.0
        self._looks -= 1
        if self._looks < 0:
            raise asyncio.CancelledError


@pytest.fixture(autouse=True)
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    contact = hands.contact()
    for module in (supervisor_module, cluster_module, export_module):
        monkeypatch.setattr(module, "CONTACT", contact)
    return hands


@pytest.fixture
def seen(tmp_path: Path) -> PartitionsSeen:
    return PartitionsSeen(tmp_path)


async def looked(seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch, looks: int, name: str = "_guard") -> None:
    clock = Clock(looks)
    monkeypatch.setattr(supervisor_module, "time", clock)
    monkeypatch.setattr(supervisor_module, "asyncio", SimpleNamespace(sleep=clock.sleep))
    with pytest.raises(asyncio.CancelledError):
        await getattr(seen.supervisor, name)()


def killed(seen: PartitionsSeen) -> set[str]:
    return {name for name, child in seen.children.items() if child.done}


CASES: dict[str, tuple[dict[str, int], dict[str, int], str | None, set[str]]] = {
    "a raw partition that nobody has": ({"raw_0": 5}, {}, None, {"mill-1", "mill-2"}),
    "a token partition that nobody has": ({"tokens_0": 5}, {}, None, {"segment"}),
    "one that stands still": ({"raw_0": 5}, {"raw-text/0": 3}, None, {"mill-2"}),
    "all is done": ({"raw_0": 5}, {"raw-text/0": 5}, None, set()),
    "no broker answers": ({}, {}, None, set()),
    "others have it": ({"raw_0": 5}, {}, "raw-text/0", set()),
    "a token partition that others have": ({"tokens_0": 5}, {}, "tokens.raw-text.all/0", set()),
}
"""The ends that brokers tell, what mill-2 has and how far it is, what others have; and who is killed."""


def store_group(seen: PartitionsSeen) -> str:
    return f"{seen.settings.group}-store-{Store.open_or_create(seen.settings.store).id}"


@pytest.mark.parametrize("case", CASES)
async def test_who_is_to_blame_is_killed_and_nobody_else(
    seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The mill workers for raw partitions, the segment worker for token partitions; the others go on."""
    ends, owned, elsewhere, wanted = CASES[case]
    for worker in ("mill-1", "mill-2", "segment"):
        seen.start(worker)
        seen.say(worker)
    seen.ends(**ends)
    for partition, position in owned.items():
        seen.say("mill-2", partition, position=position)
    if elsewhere is not None:
        group = store_group(seen) if elsewhere.startswith("tokens.") else seen.settings.group
        seen.elsewhere[group] = {elsewhere}
    nobodys = [name for name in seen.supervisor._cluster.ends if name not in {*owned, elsewhere}]
    await looked(seen, monkeypatch, 2)
    assert seen.supervisor._export.unowned == nobodys
    assert seen.supervisor._export.look().elsewhere == {elsewhere} - {None}
    await looked(seen, monkeypatch, 9)
    assert killed(seen) == wanted


@pytest.mark.parametrize("others", [False, True])
async def test_signatures_that_nobody_has_are_the_sequencers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, others: bool
) -> None:
    seen = PartitionsSeen(tmp_path, dedup="near")
    for worker in ("mill-1", "mill-2", "segment", "sequencer"):
        seen.start(worker)
        seen.say(worker)
    seen.ends(signatures_0=5)
    if others:
        seen.elsewhere["tokenmill-sequencer"] = {"signatures.raw-text/0"}
    await looked(seen, monkeypatch, 9)
    assert killed(seen) == (set() if others else {"sequencer"})


async def test_a_worker_that_is_not_ready_is_not_blamed(seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch) -> None:
    """It owns nothing yet, and has no name in the group; the group is asked what those own that are not ours."""
    for worker in ("mill-1", "mill-2", "segment"):
        seen.start(worker)
    seen.say("mill-2")
    seen.say("segment")
    seen.ends(raw_0=5)
    await looked(seen, monkeypatch, 9)
    assert killed(seen) == {"mill-2"}
    assert seen.asked
    assert all(asked == (seen.settings.group, {"", "mill-2"}) for asked in seen.asked)


async def test_a_supervisor_shows_that_it_turns(
    seen: PartitionsSeen, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second; and it says once for all workers that no broker answers, and again that one does."""
    turned: list[str] = []
    contact = hands.contact()
    monkeypatch.setattr(contact, "turn", lambda: turned.append("contact"))
    monkeypatch.setattr(supervisor_module, "CONTACT", contact)
    monkeypatch.setattr(seen.supervisor._export, "turn", lambda: turned.append("export"))
    monkeypatch.setattr(OutageLog, "look", lambda _: turned.append("outage"))
    await looked(seen, monkeypatch, 1, "_report")
    assert turned == ["contact", "outage", "export"] * 2


def test_what_becomes_of_workers_is_told(seen: PartitionsSeen) -> None:
    seen.start("mill-1")
    seen.start("mill-2")
    seen.say("mill-1", "raw-text/0", "raw-text/1", "raw-text/2")
    assert seen.told() == []
    child = seen.end("mill-1")
    assert seen.told() == [("ended", "mill-1, process 100, ended (exit code 1); the next one starts in 2 s")]
    assert child.done == ["board closed"]
    seen.say("mill-2", "raw-text/0", "raw-text/1")
    assert seen.told() == [("took over", "mill-2 took over raw-text/0, raw-text/1 from mill-1")]
    seen.start("mill-1")
    seen.say("mill-2", "raw-text/0")
    seen.say("mill-1", "raw-text/1", "raw-text/2")
    assert seen.told() == [("moved", "mill-1 now mills raw-text/1")]
    seen.end("mill-2", None)
    assert seen.told() == [("ended", "mill-2, process 101, ended (exit code 1)")]
    seen.end("mill-1", None, stopping=True)
    assert seen.told() == []


def test_partitions_of_two_workers_are_told_apart(seen: PartitionsSeen) -> None:
    """One that ended left some, another gave some away: they came in one heartbeat."""
    for worker in ("mill-1", "mill-2", "segment"):
        seen.start(worker)
    seen.say("mill-2", "raw-text/0", "raw-text/1")
    seen.say("segment", "raw-text/2")
    seen.end("mill-2")
    seen.told()
    seen.say("mill-1", "raw-text/0", "raw-text/1", "raw-text/2")
    assert seen.told() == [
        ("took over", "mill-1 took over raw-text/0, raw-text/1 from mill-2"),
        ("moved", "mill-1 now mills raw-text/2"),
    ]


def test_what_a_worker_died_over_is_told_to_all(seen: PartitionsSeen) -> None:
    """What was in flight when the supervisor itself killed it is not."""
    innocent, guilty = RecordsInFlight("raw-text", 0, 7, 9), RecordsInFlight("raw-text", 0, 9, 9)
    seen.start("mill-1", [innocent])
    seen.supervisor.kill("mill-1", "nobody has owned another partition")
    seen.end("mill-1")
    for worker in ("mill-1", "mill-2"):
        seen.start(worker, [guilty])
        seen.end(worker)
    assert list(seen.supervisor._deaths.of("raw-text", 0)) == [guilty, guilty]


def test_a_death_that_cannot_be_noted_harms_nobody(seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: it is not counted."""
    monkeypatch.setattr(seen.supervisor, "_deaths", Deaths(-1))
    seen.start("mill-1", [RecordsInFlight("raw-text", 0, 9, 9)])
    with capture_logs() as said:
        seen.end("mill-1")
    assert said[0]["event"] == "death not noted"
    assert [kind for kind, _ in seen.told()] == ["ended"]


def counted(records: float) -> list[tuple[str, dict[str, str], float]]:
    return [("tokenmill_records_consumed_total", {"topic": name}, records / 2) for name in ("one", "other")]


def test_a_status_tells_of_every_worker(seen: PartitionsSeen, hands: Hands) -> None:
    seen.ends(raw_0=5)
    seen.start("mill-1")
    seen.start("mill-2")
    seen.say("mill-1", "raw-text/0", position=4, metrics=counted(4.0), eras={"raw-text.all": 3})
    seen.say("mill-2", "raw-text/1", metrics=counted(5.0))
    seen.children["mill-2"].status = {**seen.children["mill-2"].status, "metrics": counted(6.0)}
    seen.end("mill-2")
    seen.start("mill-2")
    status = seen.supervisor.status()
    assert [(w.name, w.role, w.state, w.restarts, w.partitions, dict(w.counters)) for w in status.workers] == [
        ("mill-1", "mill", "running", 0, ("raw-text/0",), {"records": 4.0}),
        ("mill-2", "mill", "starting", 1, (), {}),
        ("segment", "segment", "ended", 0, (), {}),
    ]
    assert status.counters == {"records": 10.0}
    assert status.eras == {"raw-text.all": 3}
    assert [(p["partition"], p["worker"], p["end"], p["position"]) for p in status.partitions] == [
        (0, "mill-1", 5, 4),
        (1, None, None, 0),
    ]
    assert status.away_since is None
    hands.turn(3600)
    assert seen.supervisor.status().away_since is not None


def test_signatures_have_a_row_and_no_chains(tmp_path: Path) -> None:
    """They are not records that wait to be milled; but as long as some wait, not all is done."""
    seen = PartitionsSeen(tmp_path, dedup="near")
    for worker, partition in {"mill-1": "raw-text/0", "sequencer": "signatures.raw-text/0"}.items():
        seen.start(worker)
        seen.say(worker, partition, position=5)
    for end, settled in ((9, False), (5, True)):
        seen.ends(raw_0=5, signatures_0=end)
        status = seen.supervisor.status()
        rows = [(row["topic"], row["worker"], len(row["chains"]), row["lag"]) for row in status.partitions]
        assert rows == [("raw-text", "mill-1", 1, 0), ("signatures.raw-text", "sequencer", 0, end - 5)]
        assert (status.lag, status.settled) == (0, settled)


@pytest.mark.parametrize(("only", "names"), [("mill", ["mill-1", "mill-2"]), ("segment", ["segment"])])
def test_one_roles_workers_may_run_alone(tmp_path: Path, only: str, names: list[str]) -> None:
    assert list(PartitionsSeen(tmp_path, only).supervisor._slots) == names


def test_a_sequencer_runs_where_duplicates_are_looked_for(tmp_path: Path) -> None:
    assert list(PartitionsSeen(tmp_path, dedup="near").supervisor._slots) == [
        "mill-1",
        "mill-2",
        "segment",
        "sequencer",
    ]
    assert list(PartitionsSeen(tmp_path, "sequencer", "exact").supervisor._slots) == ["sequencer"]
    assert "sequencer" not in PartitionsSeen(tmp_path).supervisor._slots


def test_a_worker_can_be_killed(seen: PartitionsSeen) -> None:
    assert seen.supervisor.kill("mill-1", "a person said so") is None
    child = seen.start("mill-1")
    assert seen.supervisor.kill("mill-1", "a person said so") == child.pid
    assert killed(seen) == {"mill-1"}


async def test_everything_that_keeps_a_service_up_runs_until_it_is_cancelled(
    seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: set[str] = set()

    def work(name: str) -> Callable[[], Any]:
        async def run() -> None:
            running.add(name)
            try:
                await asyncio.Event().wait()
            finally:
                running.remove(name)

        return run

    for name, slot in seen.supervisor._slots.items():
        monkeypatch.setattr(slot, "keep", work(name))
    monkeypatch.setattr(seen.supervisor._cluster, "watch", work("watch"))
    for name in ("_guard", "_report"):
        monkeypatch.setattr(seen.supervisor, name, work(name))
    run = asyncio.ensure_future(seen.supervisor.run())
    async with asyncio.timeout(20):
        while len(running) < 6:
            assert not run.done()
            await asyncio.sleep(0)
    assert running == {"mill-1", "mill-2", "segment", "watch", "_guard", "_report"}
    run.cancel()
    await asyncio.wait({run})
    assert running == set()
