"""What a view shows of the service at one moment, and when all of it has come to rest."""

from collections.abc import Mapping
from typing import Any

import pytest

from tokenmill.app.settings import Settings
from tokenmill.app.supervisor.status import Status, partition_statuses
from tokenmill.app.telemetry.status_document import StatusSnapshot

SETTINGS = Settings(raw_topics=("raw",), splits={"all": 1000}, segment_blocks=4)
RESTING: Mapping[str, Any] = {
    "position": 9,
    "chains": {"all": {"block": 6, "documents": 8, "bytes": 80, "tokens": 70, "open_tokens": 0}},
}
STORED: Mapping[str, Any] = {"position": 3, "block": 6}


def status(
    *, ends: Mapping[str, int], owners: Mapping[str, str], raw: Mapping[str, Any], stored: Mapping[str, Any]
) -> Status:
    """Return the status of a service with one partition."""
    said = {"raw/0": raw, "tokens.raw.all/0": stored}
    known = StatusSnapshot(
        role="serve", settings=SETTINGS, not_ready=None, away_since=None, said=said, owners=owners, ends=ends
    )
    return Status({}, (), partition_statuses(known))


ENDS = {"raw/0": 9, "tokens.raw.all/0": 3}
OWNERS = {"raw/0": "mill-1"}


def test_what_mill_and_segment_worker_say_comes_together() -> None:
    """Of each chain: its blocks, where they are, and what is on its way."""
    found = status(ends={"raw/0": 11, "tokens.raw.all/0": 5}, owners=OWNERS, raw=RESTING, stored=STORED)
    (partition,) = found.partitions
    assert [partition[name] for name in ("worker", "position", "end", "lag")] == ["mill-1", 9, 11, 2]
    (chain,) = found.chains
    assert [chain[name] for name in ("stream", "block", "stored", "segments", "messages")] == ["raw.all", 6, 6, 1, 2]
    assert (found.lag, found.stored) == (2, 6)


def test_a_service_is_settled_when_all_is_milled_and_stored() -> None:
    """Every record milled by somebody, no token in an open block, every block in the store."""
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
    """Before the first word of a broker or a worker."""
    assert not Status({}, (), ()).settled
