"""Workers that are told to end, and workers that come and go: partitions move, and nothing is lost or done twice."""

import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.test_worker_kills import busy
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Service, Worker

GRACE_SECONDS = 15.0
"""What the supervisor gives a worker between SIGTERM and SIGKILL."""
MOST = 4
"""Workers of each role at the height."""
CHANGE_SECONDS = 2.0
NOTHING_CUT = '"truncated_bytes": 0'
ENDS = (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)
"""How a worker is removed: mostly in order."""
RESUMED = '"truncated_bytes": '


@pytest.mark.needs("minutes")
@pytest.mark.fault("worker-terminated")
def test_terminated_workers_leave_nothing_behind(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """They end with code 0 in time; the next ones cut nothing off, and write nothing that was written before."""
    settings = configured(4, session_timeout=6.0, splits={"train": 900, "dev": 100})
    with working(settings, 2) as service:
        with Feeder(settings, trial.rng):
            rounds = trial.rounds(1, 20)
            for role in trial.rng.sample(["mill", "segment"] * rounds, 2 * rounds):
                service.wait_until(lambda: bool(busy(service, role)))  # noqa: B023 - called before the next round
                worker = trial.rng.choice(busy(service, role) or workers(service, role))  # a rebalance may have begun
                time.sleep(trial.rng.uniform(0, 1))
                assert worker.stop(GRACE_SECONDS) == 0, worker.log
                service.workers.remove(worker)
                trial.fired(f"{role} SIGTERM")
                service.mill() if role == "mill" else service.segment()
        account, _ = judge(service, trial)
        assert account.duplicates == 0
        logs = "".join(path.read_text() for path in tmp_path.glob("segment-*.log"))
        assert logs.count(RESUMED) == logs.count(NOTHING_CUT) > 0
    assert len(trial.faults) == 2


def workers(service: Service, role: str) -> list[Worker]:
    """Return the workers of a role."""
    return [worker for worker in service.workers if worker.role == role]


@pytest.mark.fault("workers-scaled")
@pytest.mark.needs("minutes")
def test_workers_come_and_go_under_load(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """From one of each role to four and back, a change every two seconds, some of them in the middle of another."""
    settings = configured(6, session_timeout=3.0, splits={"train": 900, "dev": 100})
    with working(settings) as service:
        with Feeder(settings, trial.rng):
            service.wait_until(lambda: bool(busy(service, "mill") and busy(service, "segment")))
            for _ in range(trial.rounds(1, 10)):
                for step in (1, -1):
                    for role in ("mill", "segment") * (MOST - 1):
                        scale(service, role, step, trial)
                        time.sleep(trial.rng.uniform(0, CHANGE_SECONDS))
                    service.wait_until(lambda: all(worker.partitions for worker in service.workers))
        service.tend()
        judge(service, trial)
        moved = sum(path.read_text().count("partitions assigned") for path in tmp_path.glob("*-*.log"))
        assert moved > 2 * (MOST - 1)
        trial.held(assignments=moved)


def scale(service: Service, role: str, step: int, trial: Trial) -> None:
    """Add a worker of the role, or end one, whatever it is doing."""
    if step > 0:
        service.mill() if role == "mill" else service.segment()
        trial.fired(f"{role} added")
        return
    victim = trial.rng.choice(workers(service, role))
    victim.process.send_signal(trial.rng.choice(ENDS))
    victim.process.wait()
    service.workers.remove(victim)
    trial.fired(f"{role} removed")
