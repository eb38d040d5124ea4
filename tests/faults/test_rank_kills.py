"""Ranks of a run over a growing mixture are killed, and others, more or fewer, go on from the last state.

Each rank is a process, and writes down each sample that it was given, with its number, before it meets the others, as
in a collective. When one is killed, all are, as launchers do it. What counts of a run is what came before the state
from which the next one goes on, as with the model.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, Final, NamedTuple

import pytest

from tests.consumers import mixtures
from tests.faults.trial import Trial
from tokenmill.store import Store

FORK: Final = multiprocessing.get_context("fork")
WORLDS: Final = (1, 2, 64, 3, 8, 5, 12, 6, 7, 4, 32, 2)
FIRST: Final = ("a", "b", "c", "d", "e")
ADDED: Final = ("f", "g", "h")
CHANGES: Final = 20
ERAS: Final = 160


class Asked(NamedTuple):
    step: int
    ahead: int  # how many steps later that counts
    weights: Mapping[str, Fraction]
    added: str | None = None
    share: Fraction = Fraction(0)


@dataclass
class Run:
    directory: Path
    stores: Mapping[str, Path]
    names: tuple[str, ...]
    world: int
    size: int
    asked: list[Asked]
    state: dict[str, Any] | None
    first_step: int
    first_sample: int
    ranks: list[Any] = field(default_factory=list)

    @property
    def saved(self) -> Path:
        return self.directory / "state.json"

    def begin(self) -> None:
        self.directory.mkdir()
        barrier = FORK.Barrier(self.world)
        self.ranks = [FORK.Process(target=self._rank, args=(rank, barrier)) for rank in range(self.world)]
        for rank in self.ranks:
            rank.start()

    def saved_step(self) -> int:
        """Return the number of the last step whose state was saved; one less than the first: none was."""
        return int(json.loads(self.saved.read_text())["step"]) if self.saved.exists() else self.first_step - 1

    def kill(self, rng: random.Random) -> int:
        """Kill some ranks at any moment, and the others when they are gone; return how many ended by the signal."""
        victims = rng.sample(self.ranks, rng.randint(1, min(3, self.world)))
        for some in (victims, self.ranks):
            for one in some:
                one.kill()
            for one in some:
                one.join()
        return sum(one.exitcode == -signal.SIGKILL for one in self.ranks)

    def given(self) -> Iterator[tuple[int, mixtures.Row]]:
        """Yield the number of each sample that a rank was given, and the sample; a line may be cut off."""
        for file in self.directory.glob("*.rows"):
            for line in file.read_text().rpartition("\n")[0].splitlines():
                number, name, tokens = json.loads(line)
                yield number, (name, tuple(tokens))

    def _rank(self, rank: int, barrier: Any) -> None:
        """Train, until this is killed."""
        options: dict[str, Any] = {"rank": rank, "world_size": self.world, "batch_size": self.size}
        options |= {"timeout": 120.0, "poll_seconds": 0.01}
        mixture = mixtures.open_mixture({n: self.stores[n] for n in self.names}, dict.fromkeys(FIRST, 1), **options)
        if self.state is not None:
            mixture.load_state_dict(self.state)
        asked = list(self.asked)
        with (self.directory / f"{rank}.rows").open("w", buffering=1) as file, suppress(BrokenBarrierError):
            for batch in mixture:
                total = self.world * self.size
                places = mixtures.places_of(batch.step, total)[rank * self.size :]
                for place, (name, tokens) in zip(places, mixtures.given_rows([batch]), strict=False):
                    number = batch.state["sample"] - total + place
                    file.write(json.dumps([number, name, [int(token) for token in tokens]]) + "\n")
                barrier.wait(120)  # a rank's part of a step is worth something when all have theirs
                if rank == 0:
                    self._save(batch.state, batch.step)
                time.sleep(0.005)  # long enough that the next batches are copied beside this one
                while asked and asked[0].step == batch.step + 1:
                    one = asked.pop(0)
                    if one.added is None:
                        mixture.set_weights(one.weights, one.step + one.ahead)
                    else:
                        new = mixtures.open_streams({one.added: self.stores[one.added]}, **options)[one.added]
                        mixture.add_stream(one.added, new, one.share, one.step + one.ahead)
        os._exit(1)

    def _save(self, state: dict[str, Any], step: int) -> None:
        part = self.saved.with_suffix(".part")
        part.write_text(json.dumps({"state": state, "step": step}))
        part.rename(self.saved)


class History:
    """What is known of all runs: what they were asked that counts, and what they gave."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = list(FIRST)
        self.changes: list[mixtures.Change] = [(0, 0, dict.fromkeys(FIRST, Fraction(1)))]
        self.rows: dict[int, mixtures.Row] = {}
        self.times_set = 0
        self.state: dict[str, Any] | None = None
        self.step = 0

    @property
    def is_done(self) -> bool:
        return self.times_set >= CHANGES and len(self.names) == len(FIRST) + len(ADDED)

    def plan(self) -> list[Asked]:
        """Return what the next run is asked: weights twice, and a stream perhaps between them."""
        names, rng = list(self.names), self.rng
        found = [self._weights(names, self.step + 1)]
        if len(names) < len(FIRST) + len(ADDED) and rng.random() < 0.7:
            added = ADDED[len(names) - len(FIRST)]
            found.append(Asked(self.step + 2, 0, {}, added, Fraction(1, rng.randint(4, 9))))
            names.append(added)
        return [*found, self._weights(names, self.step + 3), self._weights(names, self.step + 4)]

    def _weights(self, names: list[str], step: int) -> Asked:
        weights = {name: Fraction(self.rng.randint(1, 20), 7) for name in names}
        return Asked(step, self.rng.randint(0, 2), weights)

    def take(self, run: Run) -> None:
        """Take over what counts of a run: what came up to its last state."""
        if not run.saved.exists():
            return
        saved = json.loads(run.saved.read_text())
        for number, row in run.given():
            if number < saved["state"]["sample"]:
                assert self.rows.setdefault(number, row) == row, f"sample {number} was given twice"
                assert number >= run.first_sample
        for one in run.asked:
            if one.step <= saved["step"]:
                self._count(one, run)
        assert sorted(self.rows) == list(range(saved["state"]["sample"])), "a sample was left out"
        self.state, self.step = saved["state"], saved["step"] + 1

    def _count(self, one: Asked, run: Run) -> None:
        known = run.first_sample + (one.step - run.first_step) * run.world * run.size
        if one.added is None:
            self.changes.append((known + one.ahead * run.world * run.size, known, one.weights))
            self.times_set += 1
            return
        held = [weights for start, _, weights in mixtures.effective(self.changes, known) if start <= known][-1]
        others = {name: weight / sum(held.values()) * (1 - one.share) for name, weight in held.items()}
        self.changes.append((known, known, others | {one.added: one.share}))
        self.names.append(one.added)


@pytest.mark.fault("ranks-killed")
@pytest.mark.needs("minutes")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_killed_ranks_of_a_growing_mixture_leave_one_sequence(tmp_path: Path, trial: Trial) -> None:
    """Five streams that grow, 20 changes, 3 streams that are added, 10 resumes at world sizes 1 to 64."""
    stores = {
        name: mixtures.stream_store(tmp_path / name, seed, ERAS, there=2, info=mixtures.LONG_SEGMENTS)
        for seed, name in enumerate((*FIRST, *ADDED))
    }
    reached = 2
    history = History(trial.rng)
    paths = {name: store.path for name, store in stores.items()}
    for number, world in enumerate(cycle(WORLDS)):
        if history.is_done and number > 10:
            break
        size = trial.rng.choice([1, 2]) if world < 16 else 1
        began = history.state, history.step, len(history.rows)
        run = Run(tmp_path / f"run-{number}", paths, tuple(history.names), world, size, history.plan(), *began)
        run.begin()
        wanted = run.first_step + trial.rng.randint(1, 5)
        while run.saved_step() < wanted:
            assert all(one.is_alive() for one in run.ranks), "a rank ended by itself"
            reached = min(reached + 1, ERAS)
            grow(stores, reached)
        time.sleep(trial.rng.uniform(0, 0.03))
        trial.fired("rank SIGKILL", run.kill(trial.rng))
        history.take(run)
        trial.held(resumes=1)
    grow(stores, ERAS, end=True)
    names = [history.rows[number][0] for number in range(len(history.rows))]
    assert names == mixtures.drawn(history.changes, len(names))
    assert [history.rows[number] for number in range(len(names))] == mixtures.in_order(names, mixtures.alone(paths))
    # a change that becomes known as it begins may find several streams owed one at once: docs/training.md, Mixtures
    assert mixtures.worst_share(names, history.changes) < Fraction(3, 2)
    assert len(json.dumps(history.state)) < 16 << 10
    trial.held("exact", "reader", samples=len(names), changes=history.times_set)


def grow(stores: Mapping[str, Store], reached: int, *, end: bool = False) -> None:
    for seed, store in enumerate(stores.values()):
        mixtures.bring(store, seed, ERAS, reached, end=end, info=mixtures.LONG_SEGMENTS)
