"""SIGKILL at random moments while documents flow: whoever takes over continues, block for block."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.service import Service, Worker, service_settings
from tokenmill.app.broker import Broker

ROUNDS = 3


def busy(service: Service, role: str) -> list[Worker]:
    """Return the workers of a role that own partitions and have come somewhere."""
    return [
        worker
        for worker in service.workers
        if worker.role == role and any(p.get("position") or p.get("block") for p in worker.partitions.values())
    ]


@pytest.mark.parametrize("role", ["mill", "segment"])
def test_killed_workers_lose_and_repeat_nothing(
    broker: Broker, topic: TopicFactory, tmp_path: Path, rng: random.Random, role: str
) -> None:
    """Several workers die in the middle of their work, others take over; all is equal to the reference."""
    settings = service_settings(broker, topic(4), tmp_path, session_timeout=2.0, splits={"train": 900, "dev": 100})
    owned: set[str] = set()
    with Service(settings, tmp_path) as service:
        with Feeder(settings, rng):
            service.mill(2 if role == "mill" else 1)
            service.segment()
            if role == "segment":
                service.segment()
            for _ in range(ROUNDS):
                service.wait_until(lambda: bool(busy(service, role)))
                time.sleep(rng.uniform(0, 1))
                victim = rng.choice(busy(service, role) or service.workers)
                owned |= victim.partitions.keys()
                victim.kill()
                assert victim.process.returncode == -signal.SIGKILL
                service.mill() if role == "mill" else service.segment()
        judge(service)
    assert owned, "no victim owned a partition"
