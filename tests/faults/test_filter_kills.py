"""SIGKILL of mills that filter: kernels, models and lists are opened again, and every figure is the reference's."""

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.every_step import EXTRAS, LISTED_DOMAIN, every_step, record_of, text_of
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.test_worker_kills import kill_one
from tests.faults.trial import Trial
from tests.service import Service
from tokenmill.app.milling.curation.choosing import WITH_KERNELS, compile_kernels
from tokenmill.app.milling.steps.pipeline import STEPS

for library in ("spacy", "numba", "ftfy", "re2", "fasttext"):
    pytest.importorskip(library)

from tokenmill.app.milling.curation import compiled  # noqa: E402 - needs numba

URLS: Final = (*["http://good.example/page"] * 8, f"http://www.{LISTED_DOMAIN}/", "http://good.example/casino-royal")
BURST: Final = 1
"""Documents every twentieth of a second: the references of the steps take some twenty milliseconds for each."""
MOST: Final = 1000
"""Documents for each kill: a minute of them, however long the mills take to start."""
REASONS_AT_LEAST: Final = 8
"""Steps and reasons that a few hundred of these documents meet; there are some fifteen."""


def curated(rng: random.Random) -> bytes:
    """Return a record of which one step or another makes something, or a text that all of them keep."""
    numbers = [rng.randrange(1000) for _ in range(rng.randint(6, 14))]
    return record_of(rng.randrange(1000), text_of(numbers, rng.choice(EXTRAS)), rng.choice(URLS))


@pytest.fixture
def kernels() -> None:
    """Have the machine code: mills would compile it for minutes, and wait for each other, before they take a record."""
    if not compiled.are_kept(WITH_KERNELS):
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
        with Feeder(settings, trial.rng, burst=BURST, most=MOST * rounds, make=curated):
            service.segment()
            for _ in range(trial.rounds(1, 2)):  # each takes ten seconds to open models and kernels
                service.mill()
            for _ in range(rounds):
                kill_one(service, "mill", trial)
        _, chains = judge(service, trial)
        assert not [
            worker.log for worker in service.workers if "steps run without compiled kernels" in worker.log
        ]  # all had the kernels
    met = sum((Counter(chain.totals.filtered) for chain in chains), Counter())
    assert len(met) >= REASONS_AT_LEAST, met
    assert trial.faults == {"mill SIGKILL": rounds}
