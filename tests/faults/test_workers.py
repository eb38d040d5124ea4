"""Workers killed, told to end, added and removed while documents flow: whoever takes over continues."""

import importlib
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.every_step import EXTRAS, LISTED_DOMAIN, every_step, record_of, text_of
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import Expected, judge
from tests.faults.serving import working
from tests.faults.trial import Trial
from tests.service import Service, Worker
from tokenmill.app.milling.curation.choosing import WITH_KERNELS, compile_kernels
from tokenmill.app.milling.steps.pipeline import STEPS
from tokenmill.app.settings import Settings
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.errors import BrokerError

BURST = 6  # documents every twentieth of a second: the reference, slow and plain, has to make all of their blocks


def of_role(service: Service, role: str) -> list[Worker]:
    return [worker for worker in service.workers if worker.role == role]


def busy(service: Service, role: str) -> list[Worker]:
    """Return the workers of a role that own partitions and have come somewhere."""

    def has_come(worker: Worker) -> bool:
        return any(p.get("position") or p.get("block") for p in worker.partitions.values())

    return [worker for worker in of_role(service, role) if has_come(worker)]


@pytest.mark.fault("worker-killed")
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
@pytest.mark.fault("worker-killed")
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
            # else it ended by itself, to be started again
            assert killed or victim.process.returncode in (RESUME_CODE, BrokerError.exit_code), victim.log
            service.workers.remove(victim)
            service.mill() if role == "mill" else service.segment()
    trial.fired(f"{role} SIGKILL")


@pytest.mark.needs("minutes")
@pytest.mark.fault("worker-terminated")
def test_terminated_workers_leave_nothing_behind(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """They end with code 0 in a supervisor's time; the next ones cut nothing off, and write nothing again."""
    settings = configured(4, session_timeout=6.0, splits={"train": 900, "dev": 100})
    with working(settings, 2) as service:
        with Feeder(settings, trial.rng):
            rounds = trial.rounds(1, 20)
            for role in trial.rng.sample(["mill", "segment"] * rounds, 2 * rounds):
                service.wait_until(lambda: bool(busy(service, role)))  # noqa: B023 - called before the next round
                worker = trial.rng.choice(busy(service, role) or of_role(service, role))  # a rebalance may have begun
                time.sleep(trial.rng.uniform(0, 1))
                assert worker.stop(15.0) == 0, worker.log
                service.workers.remove(worker)
                trial.fired(f"{role} SIGTERM")
                service.mill() if role == "mill" else service.segment()
        account, _ = judge(service, trial)
        assert account.duplicates == 0
        logs = "".join(path.read_text() for path in tmp_path.glob("segment-*.log"))
        assert logs.count('"truncated_bytes": ') == logs.count('"truncated_bytes": 0') > 0
    assert len(trial.faults) == 2


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
                    for role in ("mill", "segment") * 3:
                        if step > 0:
                            service.mill() if role == "mill" else service.segment()
                        else:  # mostly in order, whatever it is doing
                            victim = trial.rng.choice(of_role(service, role))
                            end = trial.rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
                            victim.process.send_signal(end)
                            victim.process.wait()
                            service.workers.remove(victim)
                        trial.fired(f"{role} {'added' if step > 0 else 'removed'}")
                        time.sleep(trial.rng.uniform(0, 2))
                    service.wait_until(lambda: all(worker.partitions for worker in service.workers))
        service.tend()
        judge(service, trial)
        moved = sum(path.read_text().count("partitions assigned") for path in tmp_path.glob("*-*.log"))
        assert moved > 6
        trial.held(assignments=moved)


URLS: Final = (*["http://good.example/page"] * 8, f"http://www.{LISTED_DOMAIN}/", "http://good.example/casino-royal")


def curated(rng: random.Random) -> bytes:
    """Return a record of which one step or another makes something, or a text that all of them keep."""
    numbers = [rng.randrange(1000) for _ in range(rng.randint(6, 14))]
    return record_of(rng.randrange(1000), text_of(numbers, rng.choice(EXTRAS)), rng.choice(URLS))


@pytest.fixture
def kernels() -> None:
    """Have the machine code: mills would compile it for minutes, and wait for each other, before they take a record."""
    for library in ("spacy", "numba", "ftfy", "re2", "fasttext"):
        pytest.importorskip(library)
    if not importlib.import_module("tokenmill.app.milling.curation.compiled").are_kept(WITH_KERNELS):
        compile_kernels()


@pytest.mark.fault("filters-killed")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kernels")
@pytest.mark.needs("minutes")
def test_killed_mills_with_every_step_keep_and_count_what_the_references_do(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """Blocks, dead letters and totals by step and reason, in two splits."""
    steps = every_step(tmp_path)
    assert {step["name"] for step in steps} == set(STEPS)
    trial.rng.shuffle(steps)
    settings = configured(
        2,
        session_timeout=2.0,
        splits={"train": 900, "dev": 100},
        steps=tuple(steps),
        metadata_fields=("url", "language"),
        max_text_bytes=4000,
        max_fields_bytes=70,
    )
    rounds = trial.rounds(1, 30)
    with Service(settings, tmp_path) as service:
        # the references of the steps take some twenty milliseconds for each, so a minute of documents for each kill
        with Feeder(settings, trial.rng, burst=1, most=1000 * rounds, make=curated):
            service.segment()
            for _ in range(trial.rounds(1, 2)):  # each takes ten seconds to open models and kernels
                service.mill()
            for _ in range(rounds):
                kill_one(service, "mill", trial)
        _, chains = judge(service, trial)
        assert not any("steps run without compiled kernels" in worker.log for worker in service.workers)
    met = sum((Counter(chain.totals.filtered) for chain in chains), Counter())
    assert len(met) >= 8, met  # steps and reasons; a few hundred of these documents meet some fifteen
    assert trial.faults == {"mill SIGKILL": rounds}
