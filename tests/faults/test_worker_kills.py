"""SIGKILL at random moments while documents flow: whoever takes over continues, block for block."""

import signal
import time
from typing import Any, Final

import pytest

from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import Expected, judge
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Service, Worker
from tokenmill.app.settings import Settings
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


def test_killed_workers_lose_and_repeat_nothing(configured: Configured, trial: Trial) -> None:
    """Workers of both roles die in the middle of their work, others take over; all is equal to the reference."""
    frame = trial.rng.choice([{}, {"begin_of_document": 2, "end_of_document": "none", "padding": 3}])
    settings = configured(4, session_timeout=2.0, splits={"train": 900, "dev": 100}, **frame)
    kill_under_load(settings, trial, workers=2, rounds=trial.rounds(1, 100))


PACKINGS: Final[tuple[dict[str, Any], ...]] = (
    {"sequence_length": 64, "packing": {"name": "rows", "long": "split"}},
    {"sequence_length": 64, "packing": {"name": "rows", "short": "drop"}, "allow_flush": False},
    {"sequence_length": 64, "packing": {"name": "rows", "long": "drop"}, "begin_of_document": 2, "padding": 3},
    {"sequence_length": 8, "packing": {"name": "chunks", "chunk_tokens": 32, "rest": "pad"}},
    {"sequence_length": 16, "packing": {"name": "chunks", "chunk_tokens": 48}},
)


@pytest.mark.needs("minutes")
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_killed_workers_lose_and_repeat_no_row_and_no_chunk(
    configured: Configured, trial: Trial, packing: dict[str, Any]
) -> None:
    """Documents become rows and chunks: others go on, in the middle of one as well."""
    settings = configured(2, session_timeout=2.0, splits={"train": 1}, **packing)
    chains = kill_under_load(settings, trial, workers=1, rounds=trial.rounds(1, 10))
    divides = "split" in str(packing) or "chunks" in str(packing)
    assert all(chain.totals.packing["cut"] for chain in chains) == divides


def kill_under_load(settings: Settings, trial: Trial, *, workers: int, rounds: int) -> list[Expected]:
    """Kill workers of both roles so many times in any order, and judge."""
    with working(settings, workers) as service:
        with Feeder(settings, trial.rng, burst=BURST):
            for role in trial.rng.sample(["mill", "segment"] * rounds, 2 * rounds):
                kill_one(service, role, trial)
        _, chains = judge(service, trial)
    assert trial.faults == {"mill SIGKILL": rounds, "segment SIGKILL": rounds}
    return chains


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
