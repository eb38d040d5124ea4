"""What a view shows of the service at one moment, when all of it has come to rest, and what scrapers get of it."""

import json
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from tests.outages import Hands
from tests.scraping import Key, page_of, total
from tokenmill.app.broker_contact import transaction_words
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor import supervisor as export_module
from tokenmill.app.supervisor.supervisor import Export, Status, Supervisor, WorkerLedger, partition_statuses
from tokenmill.app.supervisor.worker_slot import CAUSES, STEADY_SECONDS, Child, WorkerSlot
from tokenmill.app.telemetry.status_document import StatusSnapshot
from tokenmill.app.worker import watchdog as cluster_module
from tokenmill.app.worker.watchdog import Cluster, WatchLimits
from tokenmill.errors import DifferenceError, GapError

SETTINGS = Settings(raw_topics=("raw",), splits={"all": 1000}, segment_blocks=4)
RESTING: Mapping[str, Any] = {
    "position": 9,
    "chains": {"all": {"block": 6, "documents": 8, "bytes": 80, "tokens": 70, "open_tokens": 0}},
}
STORED: Mapping[str, Any] = {"position": 3, "block": 6}


def status(
    *, ends: Mapping[str, int], owners: Mapping[str, str], raw: Mapping[str, Any], stored: Mapping[str, Any]
) -> Status:
    said = {"raw/0": raw, "tokens.raw.all/0": stored}
    known = StatusSnapshot(
        role="serve", settings=SETTINGS, not_ready=None, away_since=None, said=said, owners=owners, ends=ends
    )
    return Status({}, (), partition_statuses(known))


ENDS = {"raw/0": 9, "tokens.raw.all/0": 3}
OWNERS = {"raw/0": "mill-1"}


def test_what_mill_and_segment_worker_say_comes_together() -> None:
    found = status(ends={"raw/0": 11, "tokens.raw.all/0": 5}, owners=OWNERS, raw=RESTING, stored=STORED)
    (partition,) = found.partitions
    assert [partition[name] for name in ("worker", "position", "end", "lag")] == ["mill-1", 9, 11, 2]
    (chain,) = found.chains
    assert [chain[name] for name in ("stream", "block", "stored", "segments", "messages")] == ["raw.all", 6, 6, 1, 2]
    assert (found.lag, found.stored) == (2, 6)


def test_a_service_is_settled_when_all_is_milled_and_stored() -> None:
    assert status(ends=ENDS, owners=OWNERS, raw=RESTING, stored=STORED).settled


@pytest.mark.parametrize(
    "change",
    [
        {"owners": {}},
        {"ends": {"tokens.raw.all/0": 3}},
        {"ends": {**ENDS, "raw/0": 10}},
        {"ends": {**ENDS, "tokens.raw.all/0": 4}},
        {"raw": {**RESTING, "chains": {"all": {**RESTING["chains"]["all"], "open_tokens": 1}}}},
        {"raw": {**RESTING, "chains": {"all": {**RESTING["chains"]["all"], "block": 7}}}},
        {"stored": {**STORED, "block": 5}},
    ],
    ids=["nobody owns it", "end unknown", "lag", "message", "open block", "block to come", "block to store"],
)
def test_a_service_is_not_settled_while_anything_is_on_its_way(change: Mapping[str, Mapping[str, Any]]) -> None:
    """Also where nobody works on a partition: what it holds is not known."""
    parts: dict[str, Any] = {"ends": ENDS, "owners": OWNERS, "raw": RESTING, "stored": STORED, **change}
    assert not status(**parts).settled


def test_nothing_at_all_is_not_settled() -> None:
    assert not Status({}, (), ()).settled


DEFAULTS = Settings()


class Ready:
    pid = 7
    status = {"ready": True, "metrics": [["tokenmill_gaps_total", {}, 2.0]]}  # noqa: RUF012 - never changed


def slots() -> dict[str, WorkerSlot]:
    nobody = cast("Supervisor", None)
    return {
        name: WorkerSlot("mill", name, nobody, settings=DEFAULTS, limits=WatchLimits(), log=None)
        for name in ("mill-1", "mill-2")
    }


def page(export: Export) -> dict[Key, float]:
    return page_of(*export.collectors)


@pytest.fixture(autouse=True)
def contact(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    for module in (export_module, cluster_module):
        monkeypatch.setattr(module, "CONTACT", hands.contact())
    return hands


def test_ready_is_when_all_workers_are_and_a_broker_answers(contact: Hands) -> None:
    all_posts, cluster = slots(), Cluster(DEFAULTS, ["raw-text"])
    export = Export(DEFAULTS, all_posts, cluster, WorkerLedger())
    all_posts["mill-1"].child = cast("Child", Ready())
    export.turn()
    assert export.probes.not_ready() == "not ready: mill-2"
    all_posts["mill-2"].child = cast("Child", Ready())
    all_posts["mill-2"]._quick_ends = ["exit code 1"] * 5
    all_posts["mill-2"]._started = time.monotonic()
    export.turn()
    assert export.probes.not_ready() == "mill-2 has ended 5 times in a row, the last time with exit code 1"
    all_posts["mill-2"]._started -= STEADY_SECONDS
    export.turn()
    assert export.probes.not_ready() == "the brokers do not say where partitions end"
    cluster._ends = {"raw-text/0": (0, 0)}
    export.turn()
    assert export.probes.not_ready() is None
    assert export.probes.unhealthy() is None
    contact.turn(10)
    export.turn()
    assert export.probes.not_ready() == "no broker answers at 127.0.0.1:9092 since 1970-01-01T00:16:40Z"
    assert cluster.ends == {}


def test_a_worker_whom_no_broker_answers_is_not_up() -> None:
    """It runs, and does nothing: its state says so, and nothing is ready, though the supervisor hears from a broker."""
    all_posts, cluster = slots(), Cluster(DEFAULTS, ["raw-text"])
    export = Export(DEFAULTS, all_posts, cluster, WorkerLedger())
    child = Ready()
    all_posts["mill-1"].child = cast("Child", child)
    assert (all_posts["mill-1"].state, total(page(export), "tokenmill_worker_up", worker="mill-1")) == ("running", 1)
    all_posts["mill-2"].child = cast("Child", Ready())
    child.status = {**Ready.status, "away_since": 1000.0}
    assert (all_posts["mill-1"].state, total(page(export), "tokenmill_worker_up", worker="mill-1")) == ("cut off", 0)
    cluster._ends = {"raw-text/0": (0, 0)}
    export.turn()
    assert export.probes.not_ready() == "no broker answers mill-1"


def test_what_a_worker_says_of_its_halts_is_in_the_strict_probe_and_in_the_status() -> None:
    """Until it says otherwise, or another worker, of another supervisor perhaps, has the partition."""
    all_posts, cluster, ledger = slots(), Cluster(DEFAULTS, ["raw-text"]), WorkerLedger()
    for slot in all_posts.values():
        slot.child = cast("Child", Ready())
    cluster._ends = {"raw-text/0": (9, 9), "raw-text/1": (9, 9)}
    export = Export(DEFAULTS, all_posts, cluster, ledger)
    halted = {"position": 4, "halted": "secret words", "halted_by": GapError.brief}
    ledger.heard("mill-1", {"partitions": {"raw-text/0": halted, "raw-text/1": {"position": 9}}})
    ledger.heard("mill-2", {"halts": {"eras of raw-text.train": DifferenceError.brief}})
    for worker, records in (("mill-1", 3.0), ("mill-2", 4.0)):
        samples = [
            ("tokenmill_records_consumed_total", {"topic": "raw-text"}, records),
            ("tokenmill_gaps_total", {}, 1.0),
        ]
        export.fleet.heard(worker, 7, samples)
    export.turn()
    assert export.probes.not_ready() is None
    assert (
        export.probes.not_ready(strict=True)
        == "halted: raw-text/0 (blocks are missing), eras of raw-text.train (two messages differ)"
    )
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
    cluster._begun = {(TopicPartition("raw-text", 0), 4): 1000.0}
    export.turn()
    assert (export.probes.not_ready(strict=True) or "").split(", ") == [
        f"waiting: raw-text/0 ({transaction_words(1000.0)})",
        "no eras can be read now (TopicAuthorizationFailedError)",
    ]
    cluster._begun = {}
    ledger.ended("mill-1")
    ledger.heard("mill-2", {})
    export.turn()
    assert export.probes.not_ready(strict=True) is None
    assert [row["state"] for row in export.document()["partitions"]] == ["unowned", "unowned"]


def test_workers_and_restarts_are_told_from_the_beginning() -> None:
    all_posts = slots()
    export = Export(DEFAULTS, all_posts, Cluster(DEFAULTS, ["raw-text"]), WorkerLedger())
    all_posts["mill-1"].child = cast("Child", Ready())
    all_posts["mill-2"].restarts["killed"] += 3
    export.turn()
    seen = page(export)
    assert {w: total(seen, "tokenmill_worker_up", worker=w) for w in all_posts} == {"mill-1": 1, "mill-2": 0}
    restarts = {
        (dict(labels)["worker"], dict(labels)["reason"]): value
        for (name, labels), value in seen.items()
        if name == "tokenmill_worker_restarts_total"
    }
    assert restarts == {(w, cause): 0 for w in all_posts for cause in CAUSES} | {("mill-2", "killed"): 3}
    assert total(seen, "process_resident_memory_bytes", worker="supervisor") > 0


def test_last_words_of_a_process_are_counted() -> None:
    """What came with the last heartbeat, after the last look, is in the sum."""
    export = Export(DEFAULTS, slots(), Cluster(DEFAULTS, ["raw-text"]), WorkerLedger())
    child = cast("Child", Ready())
    export.ended("mill-1", child)
    assert total(page(export), "tokenmill_gaps_total", worker="mill-1") == 2
    export.heard("mill-1", cast("Child", type("Next", (Ready,), {"pid": 8})()))
    assert total(page(export), "tokenmill_gaps_total", worker="mill-1") == 4


def test_every_end_has_a_cause() -> None:
    slot = slots()["mill-1"]
    assert [slot._cause(code) for code in (-9, 75, 3, 1)] == ["killed", "resume", "broker", "error"]
    slot.child = cast("Child", type("Deaf", (Ready,), {"signal": lambda *_: None})())
    slot.kill("it stands still")
    assert slot._cause(-9) == "watchdog"
