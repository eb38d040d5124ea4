"""SIGKILL at random moments while documents flow: whoever takes over continues, block for block."""

import signal
import time
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.trial import Trial
from tests.service import Service, Worker, service_settings
from tokenmill.app.broker import Broker

pytestmark = pytest.mark.fault("worker-killed")


def busy(service: Service, role: str) -> list[Worker]:
    """Return the workers of a role that own partitions and have come somewhere."""
    return [
        worker
        for worker in service.workers
        if worker.role == role and any(p.get("position") or p.get("block") for p in worker.partitions.values())
    ]


def test_killed_workers_lose_and_repeat_nothing(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """Workers of both roles die in the middle of their work, others take over; all is equal to the reference."""
    settings = service_settings(broker, topic(4), tmp_path, session_timeout=2.0, splits={"train": 900, "dev": 100})
    rounds = trial.rounds(3, 100)
    with Service(settings, tmp_path) as service:
        with Feeder(settings, trial.rng):
            for start in (service.mill, service.segment):
                start()
                start()
            for role in trial.rng.sample(["mill", "segment"] * rounds, 2 * rounds):
                service.wait_until(lambda: bool(busy(service, role)))  # noqa: B023 - called before the next round
                time.sleep(trial.rng.uniform(0, 1))
                victims = busy(service, role)
                if victims:
                    victim = trial.rng.choice(victims)
                    victim.kill()
                    assert victim.process.returncode == -signal.SIGKILL
                    trial.fired(f"{role} SIGKILL")
                    service.mill() if role == "mill" else service.segment()
        judge(service, trial)
    assert len(trial.faults) == 2, f"hardly anything was killed: {trial.faults}"
