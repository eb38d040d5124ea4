"""Power is lost, or a command killed, while a store is retired from, repaired, adopted, begun late, or gets eras."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.crashes import Tree, crash_states, put_tree, real_tree, tree_of
from tests.faults.recording import Recording
from tests.faults.tending import WORKS, Work
from tests.faults.test_power_loss import SYNCS, no_syncs, without_locks
from tests.faults.trial import Trial
from tests.store.dying import Kill

pytestmark = pytest.mark.fault("power-lost")


class Tended:
    """A recorded piece of work on what there was; killed before a call, the same command comes again."""

    def __init__(self, root: Path, work: Work, found: Tree, kill_before: int = 0) -> None:
        put_tree(root, found)
        self.record = Recording(root, self._kill)
        self.record.start_from(found)
        self.start = len(self.record.ops)
        self._kill_before = kill_before
        self._said = [(0, 0)]
        with self.record.running():
            try:
                work.do(root, self._say)
            except Kill:
                self.start = len(self.record.ops)  # what a kill alone leaves is what it left the second one to find
                work.do(root, self._say)
        assert without_locks(real_tree(root)) == without_locks(tree_of(self.record.ops)), "not all is recorded"

    def said(self, index: int) -> int:
        """Return what had been said to be durable before the change ``index``."""
        return next(said for at, said in reversed(self._said) if at <= index)

    def crashes(self, trial: Trial, most: int) -> Iterator[tuple[Tree, int]]:
        """Yield what a power loss before each change (in the short form: some) can leave, and what had been said."""
        indexes = range(self.start, len(self.record.ops) + 1)
        for index in trial.rng.sample(indexes, min(len(indexes), trial.rounds(40, len(indexes)))):
            for tree in crash_states(self.record.ops[:index], trial.rng, most):
                yield tree, self.said(index)

    def _kill(self, _: str, number: int) -> None:
        if number == self._kill_before:
            raise Kill

    def _say(self, durable: int) -> None:
        self._said.append((len(self.record.ops), durable))


def found_by(work: Work, root: Path) -> Tree:
    """Return what the work finds."""
    with no_syncs():
        work.prepare(root)
    return real_tree(root)


@pytest.mark.parametrize("name", WORKS)
def test_whatever_a_power_loss_leaves_of_it_is_recovered_from(tmp_path: Path, trial: Trial, name: str) -> None:
    """What was said to be durable is; nothing committed is lost; the same command does what is left."""
    work, root = WORKS[name], tmp_path / "root"
    found = found_by(work, root)
    for tree, said in Tended(root, work, found).crashes(trial, trial.rounds(2, 60)):
        put_tree(root, tree)
        with no_syncs():
            work.judge(root, said, found)
        trial.fired(f"power losses: {name}")
    trial.held("exact", "complete")


@pytest.mark.parametrize("name", WORKS)
def test_what_a_killed_command_left_unsynced_is_not_built_upon(tmp_path: Path, trial: Trial, name: str) -> None:
    """Killed, it has done what nothing made durable; the next one sees that all the same. Then power is lost."""
    work, root = WORKS[name], tmp_path / "root"
    found = found_by(work, root)
    calls = Tended(root, work, found).record.calls
    numbers = [number for number, call in enumerate(calls, 1) if trial.full or call in SYNCS]  # what a sync comes after
    for kill_before in trial.rng.sample(numbers, min(len(numbers), trial.rounds(8, len(numbers)))):
        crashes = [*Tended(root, work, found, kill_before).crashes(trial, trial.rounds(2, 8))]
        for tree, said in trial.rng.sample(crashes, min(len(crashes), trial.rounds(8, 25))):
            put_tree(root, tree)
            with no_syncs():
                work.judge(root, said, found)
            trial.fired(f"kills, then power losses: {name}")
    trial.held("exact", "complete")
