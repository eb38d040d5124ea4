"""A real segment worker is killed, or refused, at single calls by which it changes its store."""

import signal
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import TopicFactory
from tests.faults.alive import assert_stores_again
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.store_follower import Following
from tests.faults.stracing import injection, stracing
from tests.faults.trial import Trial
from tests.service import Service, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.worker.ending import RESUME_CODE

CALLS: Final = ("pwrite64", "fdatasync", "fsync", "rename")
"""What a worker calls all the time, and for its store alone."""
FURTHEST: Final = 6
"""At most so many calls of a thread later: some segments are sealed by then."""

WAITS: Final = "waiting for the disk"


@pytest.mark.fault("step-killed", "sync-failed", "disk-full")
@pytest.mark.needs("strace")
def test_a_worker_that_ends_at_any_call_leaves_what_the_next_one_continues(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """By SIGKILL, or by itself after an error of the disk; a reader follows all the while."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, splits={"train": 1000})
    with Service(settings, tmp_path) as service:
        service.mill()
        with Feeder(settings, trial.rng, burst=1), Following(settings.store) as reader:
            for number in range(trial.rounds(3, 12)):
                worker = service.segment()
                if trial.rng.random() < 0.5:  # else strace is there while it recovers
                    service.wait_until(lambda: any(p["block"] for p in worker.partitions.values()))  # noqa: B023
                what = trial.rng.choice(["signal=KILL", "error=EIO", "error=ENOSPC"])
                call, when = trial.rng.choice(CALLS), trial.rng.randint(1, FURTHEST)
                options = ("-e", f"trace={call}", injection(call, what, when))
                calls = tmp_path / f"calls-{number}"
                with stracing(worker.process.pid, calls, *options):
                    service.wait_until(lambda: not worker.running or "(INJECTED)" in calls.read_text())  # noqa: B023
                service.wait_until(lambda: not worker.running or WAITS in worker.log)  # noqa: B023
                trial.fired(f"{what} at {call}" + (", and the worker waited" if worker.running else ""))
                if worker.running:  # it could not be opened: that heals without a new start
                    worker.kill()
                    assert "tries again by itself" in worker.log
                elif what == "signal=KILL":
                    assert worker.process.returncode == -signal.SIGKILL
                else:
                    assert service.wait_until_ended(worker) == RESUME_CODE
                    assert "tries again by itself" in (worker.beats.words or "")
                service.workers.remove(worker)
            service.segment()
            assert_stores_again(service, trial)
        judge(service, trial)
    trial.held("loud", "reader", read=reader.blocks)
