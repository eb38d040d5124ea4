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
from tokenmill.app.local.broker import Broker
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.errors import BrokerError

BURST = 6
"""Documents every twentieth of a second: the reference, slow and plain, has to make all of their blocks."""
RESTARTED = (RESUME_CODE, BrokerError.exit_code)
"""Codes of workers that ended by themselves, to be started again."""

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
    frame = trial.rng.choice([{}, {"begin_of_document": 2, "end_of_document": "none", "padding": 3}])
    settings = service_settings(
        broker, topic(4), tmp_path, session_timeout=2.0, splits={"train": 900, "dev": 100}, **frame
    )
    rounds = trial.rounds(3, 100)
    with Service(settings, tmp_path) as service:
        with Feeder(settings, trial.rng, burst=BURST):
            for start in (service.mill, service.segment):
                start()
                start()
            for role in trial.rng.sample(["mill", "segment"] * rounds, 2 * rounds):
                kill_one(service, role, trial)
        judge(service, trial)
    assert trial.faults == {"mill SIGKILL": rounds, "segment SIGKILL": rounds}


def kill_one(service: Service, role: str, trial: Trial) -> None:
    """Kill a worker of the role in its work, and start another, which takes over while the next one is killed."""
    killed = False
    while not killed:
        service.wait_until(lambda: bool(busy(service, role)))
        time.sleep(trial.rng.uniform(0, 1))
        if victims := busy(service, role):
            victim = trial.rng.choice(victims)
            victim.kill()
            killed = victim.process.returncode == -signal.SIGKILL
            assert killed or victim.process.returncode in RESTARTED, victim.log
            service.workers.remove(victim)
            service.mill() if role == "mill" else service.segment()
    trial.fired(f"{role} SIGKILL")
