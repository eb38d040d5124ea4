"""SIGKILL at random moments while documents flow: whoever takes over continues, block for block."""

import random
import signal
import time
from pathlib import Path

from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.service import Service, Worker, service_settings
from tokenmill.app.broker import Broker

ROUNDS = 3
"""Kills of each role."""


def busy(service: Service, role: str) -> list[Worker]:
    """Return the workers of a role that own partitions and have come somewhere."""
    return [
        worker
        for worker in service.workers
        if worker.role == role and any(p.get("position") or p.get("block") for p in worker.partitions.values())
    ]


def test_killed_workers_lose_and_repeat_nothing(
    broker: Broker, topic: TopicFactory, tmp_path: Path, rng: random.Random
) -> None:
    """Workers of both roles die in the middle of their work, others take over; all is equal to the reference."""
    settings = service_settings(broker, topic(4), tmp_path, session_timeout=2.0, splits={"train": 900, "dev": 100})
    kills = {"mill": 0, "segment": 0}
    with Service(settings, tmp_path) as service:
        with Feeder(settings, rng):
            for start in (service.mill, service.segment):
                start()
                start()
            for role in rng.sample(["mill", "segment"] * ROUNDS, 2 * ROUNDS):
                service.wait_until(lambda: bool(busy(service, role)))  # noqa: B023 - called before the next round
                time.sleep(rng.uniform(0, 1))
                victims = busy(service, role)
                if victims:
                    victim = rng.choice(victims)
                    victim.kill()
                    assert victim.process.returncode == -signal.SIGKILL
                    kills[role] += 1
                    service.mill() if role == "mill" else service.segment()
        judge(service)
    assert all(kills.values()), f"hardly anything was killed: {kills}"
    print(kills)  # noqa: T201 - what the run came to
