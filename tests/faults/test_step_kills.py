"""SIGKILL before and after every step that a message takes in the mill (a store's steps: `test_disk_steps`)."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.conftest import Configured
from tests.faults.failpoints import MILLING, RESUMING, SETTLING, SIDES, VARIABLE, Failpoint
from tests.faults.feeding import Feeder, document, flush_all
from tests.faults.oracle import judge
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send
from tokenmill.app.tools.tokenizers import train_tokenizer

pytestmark = [pytest.mark.fault("step-killed"), pytest.mark.needs("minutes")]

STARTS = 3
"""In the longest run, how often each point of milling is tried: at different moments of the worker's life."""
EARLY = (1, 2)
LATE = (1, 2, 3, 7)
"""How often a step is begun until the kill: resuming is done once a partition, everything else again and again."""


class Breakable(Service):
    """A service whose mills die, or stand still, at a failpoint, where they are given one."""

    entry = "tests.faults.failpoints"

    def mill_at(self, point: Failpoint) -> Worker:
        """Start a mill with a failpoint."""
        (mill,) = self.mill(environment={VARIABLE: str(point)})
        return mill

    def mill_until(self, point: Failpoint) -> None:
        """Start a mill that dies there; gone on return."""
        mill = self.mill_at(point)
        self.wait_until(lambda: not mill.running)
        assert mill.process.returncode == -signal.SIGKILL, f"{point}: {mill.log}"
        self.workers.remove(mill)


def points(steps: Sequence[str], trial: Trial) -> list[Failpoint]:
    """Return every point of the steps, each at a time of chance, in an order of chance."""
    found = [
        Failpoint(step, side, trial.rng.choice(EARLY if step in (*SETTLING, *RESUMING) else LATE))
        for step in steps
        for side in SIDES
    ]
    trial.rng.shuffle(found)
    return found


def test_mill_killed_at_any_step_loses_and_repeats_nothing(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """One mill after the other dies at a step of a message's way; the last one finishes."""
    settings = configured(2, session_timeout=1.5, carry_seconds=0.2, splits={"train": 900, "dev": 100})
    found = [point for _ in range(trial.rounds(1, STARTS)) for point in points((*RESUMING, *MILLING), trial)]
    with Breakable(settings, tmp_path) as service:
        service.segment()
        with Feeder(settings, trial.rng, burst=2):
            for point in found[: trial.rounds(2, len(found))]:
                service.mill_until(point)
                trial.fired(f"mill SIGKILL {point.side} {point.step}")
        service.mill()
        judge(service, trial)


def test_mill_killed_while_it_settles_a_stream_leaves_one_genesis(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """Nothing, or a genesis without its tokenizer, or both: the next mill finishes what is not there."""
    train_tokenizer(["a text of the mill and its wheel"], vocabulary_size=300).save(str(tmp_path / "tokenizer.json"))
    for number, point in enumerate(points(SETTLING, trial)[: trial.rounds(1, 4)]):
        directory = tmp_path / str(number)
        directory.mkdir()
        settings = configured(
            2,
            store=directory / "store",
            tokenizer=str(tmp_path / "tokenizer.json"),
            session_timeout=1.5,
            splits={"train": 900, "dev": 100},
        )
        send(settings, [Raw(document(trial.rng), trial.rng.randrange(2)) for _ in range(200)])
        flush_all(settings)
        with Breakable(settings, directory) as service:
            service.segment()
            service.mill_until(point)
            trial.fired(f"mill SIGKILL {point.side} {point.step}")
            service.mill()
            judge(service, trial)
