"""Faults that only a new start mends: partitions without an owner, and owners that stand still."""

from collections.abc import Mapping
from typing import Any

import pytest

from tokenmill.app.worker.watchdog import PartitionsSeen, Watchdog, WatchLimits

LIMITS = WatchLimits(unowned=30, still=60, resume=600)
READY = ("mill-1", "mill-2")


def seen(
    ends: Mapping[str, int], elsewhere: frozenset[str] = frozenset(), **partitions: Mapping[str, Any]
) -> PartitionsSeen:
    """Return a seen in which mill-1 owns ``partitions`` of topic t, by what it says of each."""
    said = {f"t/{name[1:]}": partition for name, partition in partitions.items()}
    return PartitionsSeen(ends, dict.fromkeys(said, "mill-1"), said, elsewhere)


def faults(
    watchdog: Watchdog, seconds: int, view: PartitionsSeen, ready: tuple[str, ...] = READY
) -> list[tuple[int, str]]:
    """StatusSnapshot every second, and return when which workers were found at fault."""
    found = []
    for now in range(seconds):
        found += [(now, " ".join(fault.workers)) for fault in watchdog.look(now, view, ready)]
    return found


def test_a_partition_that_nobody_owns_is_a_fault_of_all() -> None:
    """The group itself is broken (an empty assignment); after a fault the time begins anew."""
    assert faults(Watchdog(LIMITS), 65, seen({"t/0": 0})) == [(31, "mill-1 mill-2"), (63, "mill-1 mill-2")]


def test_partitions_that_others_own_are_theirs() -> None:
    """Workers of another host may share the group."""
    assert faults(Watchdog(LIMITS), 100, seen({"t/0": 5}, elsewhere=frozenset({"t/0"}))) == []


def test_nobody_is_blamed_while_no_worker_is_ready() -> None:
    """A worker that starts, or waits to be started, has its own way of being found at fault."""
    assert faults(Watchdog(LIMITS), 100, seen({"t/0": 5}), ready=()) == []


def test_an_owner_that_stands_still_is_a_fault() -> None:
    """There are records beyond its position, and the position does not change."""
    assert faults(Watchdog(LIMITS), 100, seen({"t/0": 9}, p0={"position": 5, "end": 9})) == [(61, "mill-1")]


def test_progress_waiting_and_halts_are_no_faults() -> None:
    """At the end of the log, halted with a reason, waiting with a reason, or moving: all is as it should be."""
    watchdog = Watchdog(LIMITS)
    for now in range(300):
        moving = {"position": now // 50, "end": 99}
        halted = {"position": 5, "end": 99, "halted": "why"}
        waiting = {"position": None, "end": 99, "waiting": "for what"}
        done = {"position": 99, "end": 99}
        view = seen(dict.fromkeys(("t/0", "t/1", "t/2", "t/3"), 99), p0=moving, p1=halted, p2=waiting, p3=done)

        assert watchdog.look(now, view, READY) == []


def test_a_partition_that_resumes_gets_more_time() -> None:
    """It may have to read a whole token partition; not for ever, for a resume can hang as well."""
    assert faults(Watchdog(LIMITS), 700, seen({"t/0": 9}, p0={"position": 0, "end": None})) == [(601, "mill-1")]


def test_nobody_is_blamed_for_the_time_of_an_outage() -> None:
    """While no broker answers there are no ends; a partition that stood still in it is given its time anew."""
    watchdog = Watchdog(LIMITS)
    still = {"position": 5, "end": 9}
    found = [watchdog.look(now, seen({} if 10 < now < 200 else {"t/0": 9}, p0=still), READY) for now in range(261)]
    assert found == [[]] * 261
    assert watchdog.look(262, seen({"t/0": 9}, p0=still), READY)


@pytest.mark.parametrize("between", ["waiting", "halted", "at the end", "without an owner", "another's"])
def test_time_begins_anew_after_anything_but_standing_still(between: str) -> None:
    """Though the position is the same before and after."""
    watchdog = Watchdog(LIMITS)
    still = seen({"t/0": 9}, p0={"position": 5, "end": 9})
    other = {
        "waiting": seen({"t/0": 9}, p0={"position": 5, "end": 9, "waiting": "for what"}),
        "halted": seen({"t/0": 9}, p0={"position": 5, "end": 9, "halted": "why"}),
        "at the end": seen({"t/0": 5}, p0={"position": 5, "end": 5}),
        "without an owner": seen({"t/0": 9}),
        "another's": PartitionsSeen({"t/0": 9}, {"t/0": "mill-2"}, still.partitions, frozenset()),
    }[between]
    for now in range(131):
        assert watchdog.look(now, other if 50 <= now < 70 else still, READY) == []
    assert [fault.workers for fault in watchdog.look(131, still, READY)] == [("mill-1",)]
