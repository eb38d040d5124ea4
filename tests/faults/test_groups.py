"""Committed offsets of consumer groups are for people: deleted or moved, they change nothing."""

import pytest

from tests.faults.configuring import committed, delete_group, move
from tests.faults.conftest import Configured
from tests.faults.feeding import document, flush_all
from tests.faults.oracle import judge
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, send
from tokenmill.store import Store

FAR = 1000


@pytest.mark.fault("groups-moved")
@pytest.mark.needs("minutes")
def test_positions_come_from_the_data_alone(configured: Configured, trial: Trial) -> None:
    """Groups of mill and store: a thousand back, a thousand ahead (beyond the end), gone; no block is lost or twice."""
    settings = configured(2, session_timeout=2.0, splits={"train": 1000})

    def work() -> None:
        send(settings, [Raw(document(trial.rng), number % 2) for number in range(3 * FAR)])
        flush_all(settings)
        with working(settings) as service:
            account, _ = judge(service, trial)
            assert not account.duplicates
            service.stop()

    work()
    groups = [settings.group, f"{settings.group}-store-{Store.open(settings.store).id}"]
    for group in groups:
        found = committed(settings, group)
        assert len(found) == 2, "the offsets are published, for people"
        moved = {place: max(0, at + (FAR if place[1] else -FAR)) for place, at in found.items()}
        move(settings, group, moved)
        assert committed(settings, group) == moved
        trial.fired("offsets moved", len(moved))
    work()
    for group in groups:
        delete_group(settings, group)
        assert not committed(settings, group)
        trial.fired("group deleted")
    work()
