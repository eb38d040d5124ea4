"""What the live view says while no broker answers."""

import time

from rich.console import Console

from tokenmill.app.local.live.plain import plain_line
from tokenmill.app.local.live.rates import Rates
from tokenmill.app.local.live.scene import Scene
from tokenmill.app.local.live.tables import tables
from tokenmill.app.supervisor import PartitionStatus, Status, WorkerStatus

AWAY = "NO BROKER ANSWERS since "


def scene(end: int | None, away_since: float | None) -> Scene:
    """Return a scene of one partition, which is milled up to offset 7."""
    partition = PartitionStatus("notes", 0, "mill-1", end, 7, (), None)
    worker = WorkerStatus("mill-1", "mill", "cut off" if away_since else "running", 1, 0, None, ("notes/0",))
    return Scene("notes at broker:9092", Status({}, (worker,), (partition,), away_since))


def test_a_line_says_that_no_broker_answers_and_since_when() -> None:
    """Lag is unknown then, never 0; and no mill counts as one that runs."""
    line = plain_line(scene(None, time.time() - 90), Rates())
    assert AWAY in line
    assert "(90 s)" in line
    assert "lag unknown" in line
    assert "0 of 1 mills" in line

    line = plain_line(scene(12, None), Rates())
    assert AWAY not in line
    assert "lag 5" in line


def test_tables_say_so_too() -> None:
    """In a line of its own, and in the worker's state."""
    console = Console(width=120)
    with console.capture() as captured:
        console.print(tables(scene(None, time.time() - 90), Rates(), 5.0))
    assert AWAY in captured.get()
    assert "cut off" in captured.get()
    assert "lag unknown" in captured.get()


def test_lag_is_not_known_before_the_brokers_have_said_anything() -> None:
    """Not even how many partitions there are."""
    assert Status({}, (), ()).lag is None
