"""Numbers of several workers on one page."""

import json

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from tests.scraping import Key, page_of, parse, rising, total
from tokenmill.app.telemetry.reporting import Fleet, Sample, taken
from tokenmill.app.telemetry.worker_metrics import COMMIT_SECONDS, WORKER

RECORDS = "tokenmill_records_consumed_total"
LAG = "tokenmill_consumer_lag_records"
BUCKET = "tokenmill_commit_duration_seconds_bucket"


def said(records: int, lag: int = 0) -> list[Sample]:
    return [
        (RECORDS, {"topic": "t"}, records),
        (BUCKET, {"le": "0.001"}, records),
        (LAG, {"topic": "t", "partition": "0"}, lag),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(["mill-1", "mill-2"]), st.sampled_from(["works", "ends", "anew"]), st.integers(0, 9))
    )
)
def test_counters_never_fall_and_nothing_is_counted_twice(history: list[tuple[str, str, int]]) -> None:
    fleet = Fleet()
    counts = {"mill-1": 0, "mill-2": 0}
    totals = {"mill-1": 0, "mill-2": 0}
    pids = {"mill-1": 1, "mill-2": 1}
    before: dict[Key, float] = {}
    for worker, what, number in history:
        if what == "ends":
            fleet.ended(worker)
        if what != "works":
            pids[worker] += 1
            counts[worker] = 0
        if what != "ends":
            counts[worker] += number
            totals[worker] += number
            fleet.heard(worker, pids[worker], said(counts[worker]))
        now = page_of(fleet)
        assert fleet.counts().get("records", 0) == sum(totals.values())
        assert {w: fleet.counts(w).get("records", 0) for w in counts} == counts
        for name in (RECORDS, BUCKET):
            assert {w: total(now, name, worker=w) for w in totals} == totals
        assert all(now.get(key, -1.0) >= value for key, value in rising(before).items())
        before = now


def test_gauges_are_those_of_living_processes() -> None:
    """A lag that a dead worker measured is nobody's; a second worker's is its own."""
    fleet = Fleet()
    fleet.heard("mill-1", 1, said(5, lag=7))
    fleet.heard("mill-2", 2, said(1, lag=3))
    assert total(page_of(fleet), LAG, worker="mill-1") == 7
    fleet.ended("mill-1")
    assert {dict(labels)["worker"] for name, labels in page_of(fleet) if name == LAG} == {"mill-2"}
    fleet.heard("mill-1", 3, said(1, lag=2))
    assert total(page_of(fleet), LAG, worker="mill-1") == 2
    assert total(page_of(fleet), RECORDS, worker="mill-1") == 6


def test_a_worker_s_own_metrics_arrive_whole() -> None:
    """What a registry holds is the same after it has travelled as JSON, but for the label and the moment of making."""
    COMMIT_SECONDS.observe(0.003)
    fleet = Fleet()
    fleet.heard("segment", 1, json.loads(json.dumps(taken(WORKER))))
    mine = parse(generate_latest(WORKER).decode())
    expected = {
        (name, tuple(sorted({**dict(labels), "worker": "segment"}.items()))): value
        for (name, labels), value in mine.items()
        if not name.endswith("_created")
    }
    assert page_of(fleet) == expected
    assert total(expected, "tokenmill_commit_duration_seconds_bucket", le="+Inf") >= 1
