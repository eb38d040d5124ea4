"""The supervisor: what it makes of its workers' words, ends and standstills, what it remembers, and what it shows."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from tests.app.conftest import until
from tests.outages import Hands
from tests.scraping import Key, page_of, total
from tokenmill.app.broker_contact import OutageLog, transaction_words
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor import supervisor as supervisor_module
from tokenmill.app.supervisor.supervisor import Event, Export, Status, Supervisor, WorkerLedger, partition_statuses
from tokenmill.app.supervisor.worker_slot import CAUSES, STEADY_SECONDS, WorkerSlot
from tokenmill.app.telemetry.status_document import StatusSnapshot
from tokenmill.app.worker import watchdog as cluster_module
from tokenmill.app.worker.in_flight import Deaths, RecordsInFlight
from tokenmill.app.worker.watchdog import Cluster, WatchLimits
from tokenmill.errors import DifferenceError, GapError
from tokenmill.store import Store

LIMITS = WatchLimits(unowned=30, still=60, resume=600)


class PartitionsSeen:
    """A supervisor of two mill workers and a segment worker; what a broker says is set by hand."""

    def __init__(self, directory: Path, only: Any = None, dedup: str = "none") -> None:
        own: dict[str, Any] = {"workers": 2, "splits": {"all": 1000}, "metrics_port": 0, "dedup": dedup}
        self.settings = Settings(store=directory / "store", **own)
        self.events: list[Event] = []
        self.supervisor = Supervisor(self.settings, only=only, limits=LIMITS, on_event=self.events.append)
        self.children: dict[str, Mock] = {}
        self.elsewhere: dict[str, set[str]] = {}
        self.asked = AsyncMock(side_effect=lambda group, _: self.elsewhere.get(group, set()))
        self.supervisor._cluster.owned_by_others = self.asked  # type: ignore[method-assign]

    def ends(self, **ends: int) -> None:
        """Let brokers say where partitions end."""
        topics = {"raw_0": "raw-text/0", "tokens_0": "tokens.raw-text.all/0", "signatures_0": "signatures.raw-text/0"}
        self.supervisor._cluster._ends = {topics[name]: (end, end) for name, end in ends.items()}

    def start(self, worker: str, in_flight: list[RecordsInFlight] | None = None) -> None:
        slot = self.supervisor._slots[worker]
        found = in_flight or []
        board = Mock(records_in_flight=lambda: found, pardon=found.clear)
        slot.child = self.children[worker] = Mock(pid=100 + len(self.children), status={}, board=board)
        slot.starts += 1
        self.supervisor.started(slot, slot.child)

    def start_all(self) -> None:
        for worker in self.supervisor._slots:
            self.start(worker)

    def say(self, worker: str, *partitions: str, position: int = 0, **more: Any) -> None:
        said = {name: {"position": position, "end": 9} for name in partitions}
        self.children[worker].status = {"ready": True, "member": worker, "partitions": said, **more}
        self.supervisor.heard(self.supervisor._slots[worker], self.children[worker])

    def end(self, worker: str, pause: float | None = 2.0, *, stopping: bool = False) -> Mock:
        slot = self.supervisor._slots[worker]
        child, slot.child, slot.stopping = self.children.pop(worker), None, stopping
        self.supervisor.ended(slot, child, "exit code 1", pause)
        return child

    def told(self) -> list[tuple[str, str]]:
        """Return the events since the last call, without those of starts."""
        found: list[tuple[str, str]] = [(event.kind, event.text) for event in self.events if event.kind != "started"]
        self.events.clear()
        return found


@pytest.fixture(autouse=True)
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    contact = hands.contact()
    for module in (supervisor_module, cluster_module):
        monkeypatch.setattr(module, "CONTACT", contact)
    return hands


@pytest.fixture
def seen(tmp_path: Path) -> PartitionsSeen:
    return PartitionsSeen(tmp_path)


async def looked(seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch, looks: int, name: str = "_guard") -> None:
    """Let the supervisor look so often; each sleep lets ten seconds pass, and the last one ends it."""
    clock = Hands()

    async def sleep(_: float) -> None:
        clock.turn(10.0)
        if clock.now > 1000.0 + 10.0 * looks:
            raise asyncio.CancelledError

    monkeypatch.setattr(supervisor_module, "time", clock)
    monkeypatch.setattr(supervisor_module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        await getattr(seen.supervisor, name)()


def killed(seen: PartitionsSeen) -> set[str]:
    return {name for name, child in seen.children.items() if child.signal.called}


CASES: dict[str, tuple[dict[str, int], dict[str, int], str | None, set[str]]] = {
    "a raw partition that nobody has": ({"raw_0": 5}, {}, None, {"mill-1", "mill-2"}),
    "a token partition that nobody has": ({"tokens_0": 5}, {}, None, {"segment"}),
    "one that stands still": ({"raw_0": 5}, {"raw-text/0": 3}, None, {"mill-2"}),
    "all is done": ({"raw_0": 5}, {"raw-text/0": 5}, None, set()),
    "no broker answers": ({}, {}, None, set()),
    "others have it": ({"raw_0": 5}, {}, "raw-text/0", set()),
    "a token partition that others have": ({"tokens_0": 5}, {}, "tokens.raw-text.all/0", set()),
    "signatures that nobody has": ({"signatures_0": 5}, {}, None, {"sequencer"}),
    "signatures that others have": ({"signatures_0": 5}, {}, "signatures.raw-text/0", set()),
}
"""The ends that brokers tell, what mill-2 has and how far it is, what others have; and who is killed."""


@pytest.mark.parametrize("case", CASES)
async def test_who_is_to_blame_is_killed_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Mills for raw partitions, segment workers for token partitions, sequencers for signatures; the others go on."""
    ends, owned, elsewhere, wanted = CASES[case]
    seen = PartitionsSeen(tmp_path, dedup="near" if "signatures_0" in ends else "none")
    seen.start_all()
    for worker in seen.children:
        seen.say(worker)
    seen.ends(**ends)
    for partition, position in owned.items():
        seen.say("mill-2", partition, position=position)
    if elsewhere is not None:
        store = Store.open_or_create(seen.settings.store).id
        groups = {"tokens": f"{seen.settings.group}-store-{store}", "signatures": "tokenmill-sequencer"}
        seen.elsewhere[groups.get(elsewhere.partition(".")[0], seen.settings.group)] = {elsewhere}
    nobodys = [name for name in seen.supervisor._cluster.ends if name not in {*owned, elsewhere}]
    await looked(seen, monkeypatch, 2)
    assert seen.supervisor._export.unowned == nobodys
    assert seen.supervisor._export.look().elsewhere == {elsewhere} - {None}
    await looked(seen, monkeypatch, 9)
    assert killed(seen) == wanted


async def test_a_worker_that_is_not_ready_is_not_blamed(seen: PartitionsSeen, monkeypatch: pytest.MonkeyPatch) -> None:
    """It owns nothing yet, and has no name in the group; the group is asked what those own that are not ours."""
    seen.start_all()
    seen.say("mill-2")
    seen.say("segment")
    seen.ends(raw_0=5)
    await looked(seen, monkeypatch, 9)
    assert killed(seen) == {"mill-2"}
    seen.asked.assert_awaited()
    assert all(asked.args == (seen.settings.group, {"", "mill-2"}) for asked in seen.asked.await_args_list)


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
    child.board.close.assert_called_once_with()
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
    seen.start_all()
    seen.say("mill-2", "raw-text/0", "raw-text/1")
    seen.say("segment", "raw-text/2")
    seen.end("mill-2")
    seen.told()
    seen.say("mill-1", "raw-text/0", "raw-text/1", "raw-text/2")
    taken = "mill-1 took over raw-text/0, raw-text/1 from mill-2"
    assert seen.told() == [("took over", taken), ("moved", "mill-1 now mills raw-text/2")]


def test_what_a_worker_died_over_is_told_to_all(seen: PartitionsSeen) -> None:
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
    partitions = [(p["partition"], p["worker"], p["end"], p["position"]) for p in status.partitions]
    assert partitions == [(0, "mill-1", 5, 4), (1, None, None, 0)]
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


@pytest.mark.parametrize(
    ("only", "dedup", "names"),
    [
        ("mill", "none", "mill-1 mill-2"), ("segment", "none", "segment"), ("sequencer", "exact", "sequencer"),
        (None, "none", "mill-1 mill-2 segment"), (None, "near", "mill-1 mill-2 segment sequencer"),
    ],
)  # fmt: skip
def test_one_roles_workers_may_run_alone_and_a_sequencer_where_duplicates_are_looked_for(
    tmp_path: Path, only: str | None, dedup: str, names: str
) -> None:
    assert list(PartitionsSeen(tmp_path, only, dedup).supervisor._slots) == names.split()


def test_a_worker_can_be_killed(seen: PartitionsSeen) -> None:
    assert seen.supervisor.kill("mill-1", "a person said so") is None
    seen.start("mill-1")
    assert seen.supervisor.kill("mill-1", "a person said so") == 100
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
    await until(lambda: len(running) == 6, run)
    assert running == {"mill-1", "mill-2", "segment", "watch", "_guard", "_report"}
    run.cancel()
    await asyncio.wait({run})
    assert running == set()


def mill(*partitions: str, blocks: int = 0) -> dict[str, Any]:
    counts = dict.fromkeys(("block", "documents", "bytes", "tokens"), blocks)
    said = {"position": blocks, "chains": {"train": {**counts, "open_tokens": 3}} if blocks else {}}
    return {"role": "mill", "ready": True, "partitions": {name: dict(said) for name in partitions}}


def test_progress_is_kept_while_another_worker_resumes() -> None:
    """A new owner knows nothing at first and then begins a little earlier; what was there before is still there."""
    ledger = WorkerLedger()
    ledger.heard("mill-1", mill("t/0", blocks=9))
    ledger.ended("mill-1")
    for blocks, expected in ((0, 9), (7, 9), (11, 11)):
        ledger.heard("mill-2", mill("t/0", blocks=blocks))
        chain = ledger.partitions["t/0"]["chains"]["train"]
        assert (chain["block"], chain["documents"], chain["open_tokens"]) == (expected, expected, 3)


def test_the_newest_dead_letter_and_eras_outlive_their_worker() -> None:
    """The next owner knows of none, and people still want to read why."""
    ledger, letter = WorkerLedger(), {"offset": 3, "reason": "invalid_utf8", "at": 5.0}
    told = {**mill("t/0", blocks=1), "eras": {"t.train": 7}}
    told["partitions"]["t/0"]["dead_letter"] = letter
    ledger.heard("a", told)
    ledger.ended("a")
    assert ledger.eras == {"t.train": 7}
    ledger.heard("b", mill("t/0", blocks=1))
    assert ledger.partitions["t/0"]["dead_letter"] == letter


def test_each_heartbeat_says_what_its_worker_has_and_nothing_of_the_others() -> None:
    """Who goes on has moved nothing; what one gives up is nobody's until another says so."""
    ledger = WorkerLedger()
    for _ in range(2):
        assert ledger.heard("a", mill("t/0", "t/1")) == {}
        assert ledger.heard("b", mill("t/2")) == {}
        assert ledger.owners == {"t/0": "a", "t/1": "a", "t/2": "b"}
    ledger.heard("a", mill("t/0"))
    assert ledger.owners == {"t/0": "a", "t/2": "b"}
    assert ledger.heard("b", mill("t/1", "t/2")) == {("a", False): ["t/1"]}
    ledger.ended("b")
    assert ledger.owners == {"t/0": "a"}


def test_a_stores_block_never_falls_and_the_newest_dead_letter_wins() -> None:
    """A new owner begins a little earlier, or knows of none; what it says later counts."""
    ledger = WorkerLedger()
    for said, kept in ((9, 9), (None, 9), (7, 9), (12, 12)):
        ledger.heard("segment", {"partitions": {"t/0": {"block": said, "dead_letter": {"offset": said}}}})
        assert ledger.partitions["t/0"]["block"] == kept
        assert ledger.partitions["t/0"]["dead_letter"] == {"offset": said}


SETTINGS = Settings(raw_topics=("raw",), splits={"all": 1000}, segment_blocks=4)
CHAIN = {"block": 6, "documents": 8, "bytes": 80, "tokens": 70, "open_tokens": 0}
SAID: Mapping[str, Any] = {
    "raw/0": {"position": 9, "chains": {"all": CHAIN}}, "tokens.raw.all/0": {"position": 3, "block": 6},
}  # fmt: skip
ENDS = {"raw/0": 9, "tokens.raw.all/0": 3}


def status(ends: Mapping[str, int] = ENDS, owners: Mapping[str, str] = {"raw/0": "mill-1"}, **said: Any) -> Status:
    known = StatusSnapshot(
        role="serve",
        settings=SETTINGS,
        not_ready=None,
        away_since=None,
        said={**SAID, **said},
        owners=owners,
        ends=ends,
    )
    return Status({}, (), partition_statuses(known))


def test_what_mill_and_segment_worker_say_comes_together() -> None:
    found = status({"raw/0": 11, "tokens.raw.all/0": 5})
    (partition,) = found.partitions
    assert [partition[name] for name in ("worker", "position", "end", "lag")] == ["mill-1", 9, 11, 2]
    (chain,) = found.chains
    assert [chain[name] for name in ("stream", "block", "stored", "segments", "messages")] == ["raw.all", 6, 6, 1, 2]
    assert (found.lag, found.stored) == (2, 6)


def test_a_service_is_settled_when_all_is_milled_and_stored() -> None:
    assert status().settled
    assert not Status({}, (), ()).settled


UNSETTLED: dict[str, dict[str, Any]] = {
    "nobody owns it": {"owners": {}},
    "end unknown": {"ends": {"tokens.raw.all/0": 3}},
    "lag": {"ends": {**ENDS, "raw/0": 10}},
    "message": {"ends": {**ENDS, "tokens.raw.all/0": 4}},
    "open block": {"raw/0": {"position": 9, "chains": {"all": {**CHAIN, "open_tokens": 1}}}},
    "block to come": {"raw/0": {"position": 9, "chains": {"all": {**CHAIN, "block": 7}}}},
    "block to store": {"tokens.raw.all/0": {"position": 3, "block": 5}},
}


@pytest.mark.parametrize("case", UNSETTLED)
def test_a_service_is_not_settled_while_anything_is_on_its_way(case: str) -> None:
    """Also where nobody works on a partition: what it holds is not known."""
    assert not status(**UNSETTLED[case]).settled


DEFAULTS = Settings()


class Shown:
    """What is shown of two slots, at which nobody works."""

    def __init__(self) -> None:
        nobody, limits = cast("Supervisor", None), WatchLimits()
        self.one, self.two = slots = [
            WorkerSlot("mill", name, nobody, settings=DEFAULTS, limits=limits, log=None)
            for name in ("mill-1", "mill-2")
        ]
        self.cluster, self.ledger = Cluster(DEFAULTS, ["raw-text"]), WorkerLedger()
        self.export = Export(DEFAULTS, {slot.name: slot for slot in slots}, self.cluster, self.ledger)

    def not_ready(self, *, strict: bool = False) -> str | None:
        self.export.turn()
        return self.export.probes.not_ready(strict=strict)

    def page(self) -> dict[Key, float]:
        return page_of(*self.export.collectors)


def ready(pid: int = 7, **status: Any) -> Any:
    said = {"ready": True, "metrics": [["tokenmill_gaps_total", {}, 2.0]], **status}
    return Mock(pid=pid, status=said)


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_ready_is_when_all_workers_are_and_a_broker_answers(shown: Shown, hands: Hands) -> None:
    shown.one.child = ready()
    assert shown.not_ready() == "not ready: mill-2"
    shown.two.child = ready()
    shown.two._quick_ends = ["exit code 1"] * 5
    shown.two._started = time.monotonic()
    assert shown.not_ready() == "mill-2 has ended 5 times in a row, the last time with exit code 1"
    shown.two._started -= STEADY_SECONDS
    assert shown.not_ready() == "the brokers do not say where partitions end"
    shown.cluster._ends = {"raw-text/0": (0, 0)}
    assert shown.not_ready() is None
    assert shown.export.probes.unhealthy() is None
    hands.turn(10)
    assert shown.not_ready() == "no broker answers at 127.0.0.1:9092 since 1970-01-01T00:16:40Z"
    assert shown.cluster.ends == {}


def test_a_worker_whom_no_broker_answers_is_not_up(shown: Shown) -> None:
    shown.one.child, shown.two.child = ready(), ready()
    assert (shown.one.state, total(shown.page(), "tokenmill_worker_up", worker="mill-1")) == ("running", 1)
    shown.one.child = ready(away_since=1000.0)
    assert (shown.one.state, total(shown.page(), "tokenmill_worker_up", worker="mill-1")) == ("cut off", 0)
    shown.cluster._ends = {"raw-text/0": (0, 0)}
    assert shown.not_ready() == "no broker answers mill-1"


def test_what_a_worker_says_of_its_halts_is_in_the_strict_probe_and_in_the_status(shown: Shown) -> None:
    """Until it says otherwise, or another worker, of another supervisor perhaps, has the partition."""
    ledger, export = shown.ledger, shown.export
    shown.one.child = shown.two.child = ready()
    shown.cluster._ends = {"raw-text/0": (9, 9), "raw-text/1": (9, 9)}
    halted = {"position": 4, "halted": "secret words", "halted_by": GapError.brief}
    ledger.heard("mill-1", {"partitions": {"raw-text/0": halted, "raw-text/1": {"position": 9}}})
    ledger.heard("mill-2", {"halts": {"eras of raw-text.train": DifferenceError.brief}})
    for worker, records in (("mill-1", 3.0), ("mill-2", 4.0)):
        consumed = ("tokenmill_records_consumed_total", {"topic": "raw-text"}, records)
        export.fleet.heard(worker, 7, [consumed, ("tokenmill_gaps_total", {}, 1.0)])
    assert shown.not_ready() is None
    words = "halted: raw-text/0 (blocks are missing), eras of raw-text.train (two messages differ)"
    assert shown.not_ready(strict=True) == words
    told = export.document()
    assert "secret" not in json.dumps(told)
    assert told["ready"]
    assert [(row["state"], row["halted"], row["worker"], row["lag"]) for row in told["partitions"]] == [
        ("halted", "blocks are missing", "mill-1", 5),
        ("running", None, "mill-1", 0),
    ]
    assert told["counted"] == {"tokenmill_records_consumed_total": [({"topic": "raw-text"}, 7.0)]}
    assert [(row["name"], row["state"]) for row in told["workers"]] == [("mill-1", "running"), ("mill-2", "running")]
    ledger.heard("mill-1", {"partitions": {"raw-text/0": {"position": 4}, "raw-text/1": {"position": 9}}})
    ledger.heard("mill-2", {"waits": {"no eras can be read now": "TopicAuthorizationFailedError"}})
    shown.cluster._begun = {(TopicPartition("raw-text", 0), 4): 1000.0}
    waits = f"raw-text/0 ({transaction_words(1000.0)}), no eras can be read now (TopicAuthorizationFailedError)"
    assert shown.not_ready(strict=True) == f"waiting: {waits}"
    shown.cluster._begun = {}
    ledger.ended("mill-1")
    ledger.heard("mill-2", {})
    assert shown.not_ready(strict=True) is None
    assert [row["state"] for row in export.document()["partitions"]] == ["unowned", "unowned"]


def test_workers_and_restarts_are_told_from_the_beginning(shown: Shown) -> None:
    shown.one.child = ready()
    shown.two.restarts["killed"] += 3
    shown.export.turn()
    page, both = shown.page(), ("mill-1", "mill-2")
    assert [total(page, "tokenmill_worker_up", worker=worker) for worker in both] == [1, 0]
    restarts = {
        (dict(labels)["worker"], dict(labels)["reason"]): value
        for (name, labels), value in page.items()
        if name == "tokenmill_worker_restarts_total"
    }
    assert restarts == {(worker, cause): 0 for worker in both for cause in CAUSES} | {("mill-2", "killed"): 3}
    assert total(page, "process_resident_memory_bytes", worker="supervisor") > 0


def test_last_words_of_a_process_are_counted(shown: Shown) -> None:
    """What came with the last heartbeat, after the last look, is in the sum."""
    shown.export.ended("mill-1", ready())
    assert total(shown.page(), "tokenmill_gaps_total", worker="mill-1") == 2
    shown.export.heard("mill-1", ready(pid=8))
    assert total(shown.page(), "tokenmill_gaps_total", worker="mill-1") == 4


def test_every_end_has_a_cause(shown: Shown) -> None:
    slot = shown.one
    assert [slot._cause(code) for code in (-9, 75, 3, 1)] == ["killed", "resume", "broker", "error"]
    slot.child = ready()
    slot.kill("it stands still")
    assert slot._cause(-9) == "watchdog"
