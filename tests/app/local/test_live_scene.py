"""Rates, and what a scene says of brokers that do not answer."""

import time
from collections.abc import Mapping

from rich.console import Console, Group

from tokenmill.app.local.live_view import WINDOW_SECONDS, LiveScene, Rates, _picture, _plain_line
from tokenmill.app.supervisor.supervisor import Status
from tokenmill.app.telemetry.status_document import WorkerStatus


def counted(**workers: float) -> Mapping[str, Mapping[str, float]]:
    """Return workers that have counted so many documents and tokens."""
    return {name: {"documents": size, "tokens": size} for name, size in workers.items()}


def test_a_rate_is_growth_over_the_last_seconds() -> None:
    """What was long ago does not count."""
    rates = Rates()
    for second in range(20):
        rates.add(float(second), counted(a=1000 if second < 10 else 1000 + 10 * (second - 9)))

    assert rates.per_second("documents") == 10
    for second in range(20, 20 + 2 * int(WINDOW_SECONDS)):
        rates.add(float(second), counted(a=1100))
    assert rates.per_second("documents") == 0


def test_a_run_that_is_over_before_the_second_look_has_a_rate() -> None:
    """A worker counts from 0 on, so what it says first was done since the look before."""
    rates = Rates()
    rates.add(0.0, {})
    rates.add(2.0, counted(a=300))
    assert rates.per_second("documents") == 150
    rates.add(4.0, counted(a=300))
    assert rates.per_second("documents") == 75


def test_each_worker_has_a_rate_and_a_new_process_counts_from_0() -> None:
    """What the process before it counted is no debt of it."""
    rates = Rates()
    rates.add(0.0, counted(a=100, b=5000))
    rates.add(1.0, counted(a=140, b=60))

    assert (rates.per_second("tokens", "a"), rates.per_second("tokens", "b")) == (40, 60)
    assert rates.per_second("tokens") == 100
    assert rates.per_second("tokens", "nobody") == 0


def test_there_is_no_rate_before_two_looks() -> None:
    """One look has no length."""
    rates = Rates()
    assert rates.per_second("tokens") == 0
    rates.add(0.0, counted(a=5))
    assert rates.per_second("tokens") == 0


AWAY = "NO BROKER ANSWERS since "


def scene(end: int | None, away_since: float | None) -> LiveScene:
    """Return a scene of one partition, which is milled up to offset 7."""
    lag = None if end is None else end - 7
    partition = {"topic": "notes", "partition": 0, "worker": "mill-1", "end": end, "position": 7, "lag": lag}
    names = ("documents", "bytes", "tokens", "block", "stored", "segments", "messages", "open_tokens")
    chain = {**dict.fromkeys(names, 0), "stream": "notes.train", "note": None}
    partition |= {"chains": [chain], "note": None, "dead_letter": None}
    worker = WorkerStatus("mill-1", "mill", "cut off" if away_since else "running", 1, 0, None, ("notes/0",))
    return LiveScene("notes at broker:9092", Status({}, (worker,), (partition,), away_since))


def test_a_line_says_that_no_broker_answers_and_since_when() -> None:
    """Lag is unknown then, never 0; and no mill counts as one that runs."""
    line = _plain_line(scene(None, time.time() - 90), Rates())
    assert AWAY in line
    assert "(90 s)" in line
    assert "lag unknown" in line
    assert "0 of 1 mills" in line

    line = _plain_line(scene(12, None), Rates())
    assert AWAY not in line
    assert "lag 5" in line


def test_tables_say_so_too() -> None:
    """In a line of its own, and in the worker's state."""
    console = Console(width=120)
    with console.capture() as captured:
        console.print(Group(*_picture(scene(None, time.time() - 90), Rates(), 5.0, 120)))
    assert AWAY in captured.get()
    assert "cut off" in captured.get()
    assert "lag unknown" in captured.get()


def test_lag_is_not_known_before_the_brokers_have_said_anything() -> None:
    """Not even how many partitions there are."""
    assert Status({}, (), ()).lag is None
