"""Power is lost at every call that a store's writer makes: every state that this can leave is recovered from."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Final

import pytest

from tests.faults.crashes import Tree, crash_states, put_tree, real_tree, tree_of, unsettled
from tests.faults.recording import SYNCS, Fail, Recording
from tests.faults.scripted import STORE, Acknowledged, Script, assert_recovers, calm_store
from tests.faults.trial import Trial

LOCK: Final = "lock"
"""The one file that is written past the recording: it names the holder to people, and nothing else reads it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the scripted store where nothing fails."""
    with no_syncs():
        return calm_store(tmp_path_factory.mktemp("calm") / "root")


@contextmanager
def no_syncs() -> Iterator[None]:
    """Sync nothing: the states are judged by what they hold, and there are thousands."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SYNCS:
            patch.setattr(f"os.{name}", lambda _descriptor: None)
        yield


class Life:
    """A recorded run of the script, with what it had been told to be durable by each call."""

    def __init__(self, root: Path, fail: Fail = lambda _call, _number: None, after: "Crash | None" = None) -> None:
        """Live it, on an empty directory or on what a crash left."""
        self.root = root
        self.record = Recording(root, fail)
        put_tree(root, after.tree if after else {})
        self.record.start_from(after.tree if after else {})
        self.start = len(self.record.ops)
        self._compare = not self.start
        said = copy(after.said) if after else Acknowledged()
        self._steps = [(0, copy(said))]
        script = Script(root, said, on_step=lambda: self._step(said))
        with self.record.running():
            script.run()
        self.starts = said.starts

    def said(self, index: int) -> Acknowledged:
        """Return what had been said before the change ``index``."""
        return next(said for at, said in reversed(self._steps) if at <= index)

    def crashes(self, index: int, trial: Trial, most: int) -> Iterator["Crash"]:
        """Yield what a power loss before the change ``index`` can leave."""
        for tree in crash_states(self.record.ops[:index], trial.rng, most):
            yield Crash(tree, self.said(index))

    def _step(self, said: Acknowledged) -> None:
        self._steps.append((len(self.record.ops), copy(said)))
        if self._compare:
            assert without_locks(real_tree(self.root)) == without_locks(tree_of(self.record.ops)), "not all is recorded"


class Crash:
    """What is left, and what had been said."""

    def __init__(self, tree: Tree, said: Acknowledged) -> None:
        self.tree = tree
        self.said = said

    def judge(self, root: Path, whole: dict[str, bytes]) -> int:
        """Recover; return how many bytes were cut off."""
        put_tree(root, self.tree)
        with no_syncs():
            return assert_recovers(root, self.said, whole)


def without_locks(tree: Tree) -> Tree:
    """Leave out what is for people."""
    return {path: content for path, content in tree.items() if Path(path).name != LOCK}


@pytest.mark.fault("power-lost", "era-files-broken", "step-killed")
def test_every_state_that_a_crash_can_leave_is_recovered_from(
    tmp_path: Path, trial: Trial, whole: dict[str, bytes]
) -> None:
    """All that was said to be durable is there, nothing else than what was appended, and the end is the same.

    One of them is what a process leaves that ends while the system goes on: what it did, synced or not
    (`test_store_steps.py` really kills it).
    """
    life = Life(tmp_path / "root")
    most = trial.rounds(1, 100)
    for index in range(len(life.record.ops) + 1):
        Crash(tree_of(life.record.ops[:index]), life.said(index)).judge(life.root, whole)
        trial.fired("ends before a call")
        for crash in life.crashes(index, trial, most):
            cut_off = crash.judge(life.root, whole)
            trial.fired("power losses")
            trial.fired("recoveries that cut off bytes", bool(cut_off))
    assert any(len(unsettled(life.record.ops[:index])) > 3 for index in range(len(life.record.ops)))
    trial.held("exact", "complete", "reader", calls=len(life.record.calls))


@pytest.mark.fault("power-lost")
def test_power_is_lost_again_while_a_store_recovers(tmp_path: Path, trial: Trial, whole: dict[str, bytes]) -> None:
    """A recovery that is cut short leaves nothing that the next one does not recover from."""
    root = tmp_path / "root"
    first = Life(root)
    for index in range(0, len(first.record.ops), trial.rounds(8, 1)):
        before = trial.rng.choice([*first.crashes(index, trial, 3)])
        second = Life(root, after=before)
        for _ in range(trial.rounds(2, 20)):
            again = trial.rng.randint(second.start, len(second.record.ops))
            crash = trial.rng.choice([*second.crashes(again, trial, 5)])
            crash.judge(root, whole)
            trial.fired("power losses in or after a recovery")
    trial.held("exact", "complete", "reader")


@pytest.mark.fault("sync-failed", "disk-full", "disk-gone")
@pytest.mark.parametrize(
    "code",
    [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE],
    ids=errno.errorcode.get,
)
@pytest.mark.needs("minutes")
def test_after_any_failed_call_no_later_sync_is_believed(
    tmp_path: Path, trial: Trial, whole: dict[str, bytes], code: int
) -> None:
    """Each call fails, once or for a while; the next workers go on, and then power is lost.

    What a failed sync was to make durable counts as lost however many syncs of that file succeed afterwards: it has to
    be written again.
    """
    root = tmp_path / "root"
    numbers = [number for number, call in enumerate(Life(root).record.calls, 1) if can(call, code)]
    for nth in trial.rng.sample(numbers, len(numbers) // trial.rounds(5, 1)):
        lasts = trial.rng.choice([1, 1, 2, 5])
        life = Life(root, lambda call, number: code if nth <= number < nth + lasts and can(call, code) else None)  # noqa: B023
        assert life.record.failed
        assert life.starts or set(life.record.failed) == {"mkdir"}  # which is no failure where the directory exists
        for call in life.record.failed:
            trial.fired(f"{call} {errno.errorcode[code]}")
        assert (root / STORE).is_dir()
        for index in (len(life.record.ops), trial.rng.randrange(len(life.record.ops))):
            for crash in life.crashes(index, trial, trial.rounds(2, 10)):
                crash.judge(root, whole)
    trial.held("exact", "complete", "reader", "alive")


def can(call: str, code: int) -> bool:
    """Whether a call can fail with this error."""
    if code == errno.EMFILE:
        return call == "open"
    return code == errno.EIO or call not in SYNCS or code == errno.ENOSPC
