"""Power is lost at every call by which a store is written or tended: each state that this leaves is recovered from."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import pytest

from tests.faults.crashes import SYNCS, Fail, Recording, Tree, crash_states, put_tree, real_tree, tree_of, unsettled
from tests.faults.scripted import STORE, Acknowledged, Script, assert_recovers, calm_store
from tests.faults.trial import Trial
from tests.store import chains
from tests.store.chains import make_eras, with_offsets
from tests.store.harm import ChainDonor, Kill
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import repair_partition, rewrite_description
from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import EraReader, EraWriter, PartitionWriter, Start, Store, open_partition, read_stream
from tokenmill.store.layout import STORE_FILE, STREAM_FILE, TOKENIZER_FILE, segment_firsts, stream_directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with no_syncs():
        return calm_store(tmp_path_factory.mktemp("calm") / "root")


@contextmanager
def no_syncs() -> Iterator[None]:
    """Sync nothing: the states are judged by what they hold, and there are thousands."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SYNCS:
            patch.setattr(f"os.{name}", lambda _descriptor: None)
        yield


T = TypeVar("T")


class Crash(NamedTuple):
    """What is left, and what had been said."""

    tree: Tree
    said: Acknowledged

    def judge(self, root: Path, whole: dict[str, bytes]) -> int:
        """Recover; return how many bytes were cut off."""
        put_tree(root, self.tree)
        with no_syncs():
            return assert_recovers(root, self.said, whole)


class Recorded(Generic[T]):
    """A piece of work on what there was, recorded, with what it said to be durable by each call."""

    def __init__(self, root: Path, tree: Tree, said: T, fail: Fail = lambda _call, _number: None) -> None:
        put_tree(root, tree)
        self.root = root
        self.record = Recording(root, fail)
        self.record.start_from(tree)
        self.start = len(self.record.ops)
        self._said = [(0, said)]

    def say(self, durable: T) -> None:
        self._said.append((len(self.record.ops), durable))

    def said(self, index: int) -> T:
        """Return what had been said to be durable before the change ``index``."""
        return next(said for at, said in reversed(self._said) if at <= index)

    def require_whole(self) -> None:
        found = tree_of(self.record.ops)
        assert without_locks(real_tree(self.root)) == without_locks(found), "not all is recorded"


class Life(Recorded[Acknowledged]):
    """The script, on what a crash left."""

    def __init__(self, root: Path, fail: Fail = lambda _call, _number: None, after: Crash | None = None) -> None:
        tree, said = after or Crash({}, Acknowledged())
        super().__init__(root, tree, said, fail)
        script = Script(root, copy(said), on_step=lambda: self._step(script.said))
        with self.record.running():
            script.run()
        self.starts = script.said.starts

    def crashes(self, index: int, trial: Trial, most: int) -> Iterator[Crash]:
        """Yield what a power loss before the change ``index`` can leave."""
        for tree in crash_states(self.record.ops[:index], trial.rng, most):
            yield Crash(tree, self.said(index))

    def _step(self, said: Acknowledged) -> None:
        self.say(copy(said))
        if not self.start:
            self.require_whole()


def without_locks(tree: Tree) -> Tree:
    """Leave out what is written past the recording: locks name their holder to people, and nothing else reads them."""
    return {path: content for path, content in tree.items() if Path(path).name != "lock"}


@pytest.mark.fault("power-lost", "era-files-broken", "step-killed")
def test_every_state_that_a_crash_can_leave_is_recovered_from(
    tmp_path: Path, trial: Trial, whole: dict[str, bytes]
) -> None:
    """All that was said to be durable is there, nothing else than what was appended, and the end is the same.

    One of them is what a process leaves that ends while the system goes on: what it did, synced or not
    (`test_step_kills.py` really kills it).
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
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE], ids=errno.errorcode.get)
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
        trial.faults.update(f"{call} {errno.errorcode[code]}" for call in life.record.failed)
        assert (root / STORE).is_dir()
        for index in (len(life.record.ops), trial.rng.randrange(len(life.record.ops))):
            for crash in life.crashes(index, trial, trial.rounds(2, 10)):
                crash.judge(root, whole)
    trial.held("exact", "complete", "reader", "alive")


def can(call: str, code: int) -> bool:
    if code == errno.EMFILE:
        return call == "open"
    return code == errno.EIO or call not in SYNCS or code == errno.ENOSPC


INFO: Final = chains.make_info(block_tokens=20)
BLOCKS: Final = 22
CHAIN: Final = chains.make_chain(INFO, BLOCKS)
TOKENS: Final = chains.tokens_of(CHAIN, INFO)
TOKENIZER: Final = b"{}"
BORDER: Final = 12  # the first block that stays when old ones are retired
ERAS: Final = make_eras(INFO, {0: CHAIN}, [{0: end} for end in (2, 5, 9, 10, 13, 17, 20)])
NOTHING: Final = ChainDonor(CHAIN, INFO, lacks=range(BLOCKS))
BROKEN: Final = (5, 8, 9, 10, 11, 20)
"""Blocks whose bytes `_damage` destroys; all others must come from the store's own files."""
Say = Callable[[int], None]  # told how much is durable now; 0 until it is called, 1 in the end if it never is


class Work(NamedTuple):
    """One kind of work on the store at a path."""

    prepare: Callable[[Path], object]
    do: Callable[[Path, Say], object]  # called again after a crash, it goes on, or begins again
    judge: Callable[[Path, int, Tree], None]
    """Holds what is left, of which so much had been said to be durable, beside what the work had found there."""


def _fill(path: Path) -> Store:
    """Make five sealed segments of four blocks, and two blocks in an open one."""
    store = chains.make_store(path, INFO)
    chains.fill(store, INFO, CHAIN, [1, 9, 21, BLOCKS])
    return store


def _assert_holds(path: Path, first: int) -> None:
    reader = open_partition(path, chains.STREAM, 0, check=True)
    assert (reader.first_block, reader.blocks) == (first, BLOCKS)
    assert reader.gather(range(first, BLOCKS)).tobytes() == TOKENS[first:].tobytes()


def _assert_kept(path: Path, found: Tree) -> None:
    """Hold that every file that was there is still there, under its name or another one."""
    there = set(real_tree(path).values())
    assert not [name for name, content in without_locks(found).items() if content and content not in there]


def _judge_retired(path: Path, said: int, _: Tree) -> None:
    """Find the old segments all there, or none that counts; a writer, and the same command, clear up."""
    store = Store.open(path)
    first = open_partition(path, chains.STREAM, 0).first_block
    assert first == BORDER if said else first in {0, BORDER}
    _assert_holds(path, first)
    PartitionWriter.open(store, chains.STREAM, 0).close()
    assert segment_firsts(file.name for file in chains.directory_of(store).iterdir()) == list(range(first, BLOCKS, 4))
    retire(path, chains.STREAM, 0, BORDER)
    _assert_holds(path, BORDER)
    assert segment_firsts(file.name for file in chains.directory_of(store).iterdir()) == list(range(BORDER, BLOCKS, 4))


def _begin_late(path: Path, say: Say) -> None:
    with PartitionWriter.open(chains.make_store(path, INFO), chains.STREAM, 0) as writer:
        if not writer.begun and writer.next_block < BORDER:
            writer.begin(Start(BORDER, CHAIN.chains[BORDER - 1]))
            say(BORDER)
        for end in (BORDER + 1, BORDER + 5, BLOCKS):
            if end > writer.next_block:
                writer.append(chains.cut(CHAIN, INFO, writer.next_block, end), token_offset=end)
                writer.commit()
            say(end)


def _judge_late(path: Path, said: int, _: Tree) -> None:
    """Find that it begins nowhere yet, or where it was told to; and go on."""
    with PartitionWriter.open(chains.make_store(path, INFO), chains.STREAM, 0) as writer:
        assert writer.next_block >= said
        assert writer.next_block == 0 or writer.chain == CHAIN.chains[writer.next_block - 1]
    _begin_late(path, lambda _: None)
    _assert_holds(path, BORDER)


def _damage(path: Path) -> None:
    """Harm a partition that begins late, in every segment otherwise, and where it begins."""
    store = _fill(path)
    retire(path, chains.STREAM, 0, 4)
    chains.flip(chains.directory_of(store) / "start.json", 30)
    chains.flip(chains.segment_of(store, 4).tokens, INFO.block_bytes + 1)  # block 5
    for file in chains.segment_of(store, 8).all:
        file.unlink(missing_ok=True)
    chains.flip(chains.segment_of(store, 12).index, 50)
    chains.segment_of(store, 12).megatron.unlink()
    chains.segment_of(store, 16).manifest.write_bytes(b"?")
    chains.flip(chains.segment_of(store, 20).documents, 2)  # block 20


def _repair(path: Path, _: Say) -> None:
    donor = ChainDonor(CHAIN, INFO, lacks={*range(BLOCKS)} - {*BROKEN})
    assert not any(
        repaired.lost for repaired in repair_partition(chains.directory_of(Store.open(path)), INFO, 0, donor)
    )


def _judge_repaired(path: Path, said: int, found: Tree) -> None:
    """Let a worker come first, which makes nothing worse; then mend all, and find what was damaged still there."""
    store = Store.open(path)
    try:
        PartitionWriter.open(store, chains.STREAM, 0).close()
    except DamagedError:
        assert not said
    _repair(path, lambda _: None)
    _assert_holds(path, 4)
    assert list(repair_partition(chains.directory_of(store), INFO, 0, NOTHING)) == []
    assert not (chains.directory_of(store) / "repair").exists()
    PartitionWriter.open(store, chains.STREAM, 0).close()
    whole = path.parent.with_name("whole")
    if not whole.exists():
        _fill(whole)
        retire(whole, chains.STREAM, 0, 4)
    assert chains.contents(store) == chains.contents(Store.open(whole))
    _assert_kept(path, found)


def _describe_wrongly(path: Path) -> None:
    directory = stream_directory(_fill(path).path, chains.STREAM)
    (directory / STREAM_FILE).write_bytes(b"{")
    (directory / TOKENIZER_FILE).write_bytes(b"[")


def _describe(path: Path, _: Say) -> None:
    rewrite_description(path, chains.STREAM, lambda: (INFO, TOKENIZER))


def _judge_description(path: Path, said: int, found: Tree) -> None:
    """Find the damaged description, or the right one."""
    try:
        assert read_stream(path, chains.STREAM).encode() == INFO.encode()
    except DamagedError:
        assert not said
    _describe(path, lambda _: None)
    assert (stream_directory(path, chains.STREAM) / TOKENIZER_FILE).read_bytes() == TOKENIZER
    _assert_holds(path, 0)
    _assert_kept(path, found)


def _copy_elsewhere(path: Path) -> None:
    file = _fill(path).path / STORE_FILE
    file.write_bytes(file.read_bytes().replace(b"/store", b"/other"))


def _judge_adopted(path: Path, said: int, _: Tree) -> None:
    """Find it a stranger's, or ours; never nobody's."""
    foreign = not said and b"/other" in (path / STORE_FILE).read_bytes()
    with pytest.raises(StoreError, match="If it was moved here") if foreign else nullcontext():
        Store.open(path)
    Store.adopt(path)
    _assert_holds(path, 0)


def _bring_eras(path: Path, say: Say) -> None:
    for _ in range(2):  # two writers, one after the other
        with EraWriter.open(Store.open(path), chains.STREAM) as writer:
            say(writer.next_number)
            for _ in range(2):
                writer.append(with_offsets(ERAS)[writer.next_number : writer.next_number + 2])
                say(writer.next_number)


def _judge_eras(path: Path, said: int, _: Tree) -> None:
    """Let a reader find as many as a writer goes on from: no fewer than were said, each what it was."""
    reader = EraReader(stream_directory(path, chains.STREAM), INFO)
    assert said <= reader.eras
    assert [reader.era(number) for number in range(reader.eras)] == ERAS[: reader.eras]
    with EraWriter.open(Store.open(path), chains.STREAM) as writer:
        assert writer.next_number == reader.eras
        writer.append(with_offsets(ERAS)[writer.next_number :])
    reader = EraReader(stream_directory(path, chains.STREAM), INFO)
    assert [reader.era(number) for number in range(reader.eras)] == ERAS


WORKS: Final = {
    "retire": Work(_fill, lambda path, _: retire(path, chains.STREAM, 0, BORDER), _judge_retired),
    "repair": Work(_damage, _repair, _judge_repaired),
    "describe": Work(_describe_wrongly, _describe, _judge_description),
    "adopt": Work(_copy_elsewhere, lambda path, _: Store.adopt(path), _judge_adopted),
    "begin late": Work(lambda _: None, _begin_late, _judge_late),
    "eras": Work(_fill, _bring_eras, _judge_eras),
}


class Tended(Recorded[int]):
    """One of `WORKS`; killed before a call, the same command comes again."""

    def __init__(self, root: Path, work: Work, found: Tree, kill_before: int = 0) -> None:
        def kill(_: str, number: int) -> None:
            if number == kill_before:
                raise Kill

        super().__init__(root, found, 0, kill)
        with self.record.running():
            try:
                work.do(root / "store", self.say)
            except Kill:
                self.start = len(self.record.ops)  # what a kill alone leaves is what it left the second one to find
                work.do(root / "store", self.say)
        self.say(max(1, self.said(len(self.record.ops))))
        self.require_whole()

    def crashes(self, trial: Trial, most: int) -> Iterator[tuple[Tree, int]]:
        """Yield what a power loss before each change (in the short form: some) can leave, and what had been said."""
        indexes = range(self.start, len(self.record.ops) + 1)
        for index in trial.rng.sample(indexes, min(len(indexes), trial.rounds(40, len(indexes)))):
            for tree in crash_states(self.record.ops[:index], trial.rng, most):
                yield tree, self.said(index)


def found_by(work: Work, root: Path) -> Tree:
    root.mkdir()
    with no_syncs():
        work.prepare(root / "store")
    return real_tree(root)


@pytest.mark.fault("power-lost")
@pytest.mark.parametrize("name", WORKS)
@pytest.mark.cases(3)
def test_whatever_a_power_loss_leaves_of_it_is_recovered_from(tmp_path: Path, trial: Trial, name: str) -> None:
    """What was said to be durable is; nothing committed is lost; the same command does what is left."""
    work, root = WORKS[name], tmp_path / "root"
    found = found_by(work, root)
    for tree, said in Tended(root, work, found).crashes(trial, trial.rounds(2, 60)):
        put_tree(root, tree)
        with no_syncs():
            work.judge(root / "store", said, found)
        trial.fired(f"power losses: {name}")
    trial.held("exact", "complete")


@pytest.mark.fault("power-lost")
@pytest.mark.parametrize("name", WORKS)
@pytest.mark.cases(3)
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
                work.judge(root / "store", said, found)
            trial.fired(f"kills, then power losses: {name}")
    trial.held("exact", "complete")
