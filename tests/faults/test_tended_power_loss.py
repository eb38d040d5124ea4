"""Power is lost, or a command killed, while a store is retired from, repaired, adopted, begun late, or gets eras.

Each `Work` has a store that it finds, what it does, and what must hold of whatever a crash in it leaves.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.faults.crashes import Tree, crash_states, put_tree, real_tree, tree_of
from tests.faults.recording import SYNCS, Recording
from tests.faults.test_power_loss import no_syncs, without_locks
from tests.faults.trial import Trial
from tests.store.chains import (
    STREAM,
    contents,
    cut,
    directory_of,
    fill,
    flip,
    make_chain,
    make_info,
    make_store,
    segment_of,
    tokens_of,
)
from tests.store.dying import Kill
from tests.store.eras import make_eras, with_offsets
from tests.store.giving import ChainDonor
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import repair_partition, rewrite_description
from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import EraReader, EraWriter, PartitionWriter, Start, Store, open_partition, read_stream
from tokenmill.store.layout import STORE_FILE, STREAM_FILE, TOKENIZER_FILE, segment_firsts, stream_directory

INFO: Final = make_info(block_tokens=20)
BLOCKS: Final = 22
CHAIN: Final = make_chain(INFO, BLOCKS)
TOKENS: Final = tokens_of(CHAIN, INFO)
TOKENIZER: Final = b"{}"
BORDER: Final = 12
"""The first block that stays when old ones are retired."""
ERAS: Final = make_eras(INFO, {0: CHAIN}, [{0: end} for end in (2, 5, 9, 10, 13, 17, 20)])
NOTHING: Final = ChainDonor(CHAIN, INFO, lacks=range(BLOCKS))
BROKEN: Final = (5, 8, 9, 10, 11, 20)
"""Blocks whose bytes `_damage` destroys; all others must come from the store's own files."""
Say = Callable[[int], None]
"""Told how much is durable now; 0 until it is called."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work below a root; the store is always at the same place there."""

    prepare: Callable[[Path], object]
    do: Callable[[Path, Say], None]
    """Called again after a crash, it goes on, or begins again."""
    judge: Callable[[Path, int, Tree], None]
    """Holds what is left, of which so much had been said to be durable, beside what the work had found there."""


def _path(root: Path) -> Path:
    return root / "store"


def _filled(root: Path) -> Store:
    """Make five sealed segments of four blocks, and two blocks in an open one."""
    store = make_store(_path(root), INFO)
    fill(store, INFO, CHAIN, [1, 9, 21, BLOCKS])
    return store


def _firsts(store: Store) -> list[int]:
    return segment_firsts(path.name for path in directory_of(store).iterdir())


def assert_holds(store: Path, first: int) -> None:
    """Hold all blocks from ``first`` on against the chain."""
    reader = open_partition(store, STREAM, 0, check=True)
    assert (reader.first_block, reader.blocks) == (first, BLOCKS)
    assert reader.gather(range(first, BLOCKS)).tobytes() == TOKENS[first:].tobytes()


def _retire(root: Path, say: Say) -> None:
    retire(_path(root), STREAM, 0, BORDER)
    say(1)


def _judge_retired(root: Path, said: int, _: Tree) -> None:
    """Find the old segments all there, or none that counts; a writer, and the same command, clear up."""
    store = Store.open(_path(root))
    first = open_partition(store.path, STREAM, 0).first_block
    assert first == BORDER if said else first in {0, BORDER}
    assert_holds(store.path, first)
    PartitionWriter.open(store, STREAM, 0).close()
    assert _firsts(store) == list(range(first, BLOCKS, 4))
    retire(store.path, STREAM, 0, BORDER)
    assert_holds(store.path, BORDER)
    assert _firsts(store) == list(range(BORDER, BLOCKS, 4))


def _begin_late(root: Path, say: Say) -> None:
    store = make_store(_path(root), INFO)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        if not writer.begun and writer.next_block < BORDER:
            writer.begin(Start(BORDER, CHAIN.chains[BORDER - 1]))
            say(BORDER)
        for end in (BORDER + 1, BORDER + 5, BLOCKS):
            if end > writer.next_block:
                writer.append(cut(CHAIN, INFO, writer.next_block, end), token_offset=end)
                writer.commit()
            say(end)


def _judge_late(root: Path, said: int, _: Tree) -> None:
    """Find that it begins nowhere yet, or where it was told to; and go on."""
    store = make_store(_path(root), INFO)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert writer.next_block >= said
        assert writer.next_block == 0 or writer.chain == CHAIN.chains[writer.next_block - 1]
    _begin_late(root, lambda _: None)
    assert_holds(store.path, BORDER)


def _damage(root: Path) -> None:
    """Harm a partition that begins late, in every segment otherwise, and where it begins."""
    store = _filled(root)
    retire(store.path, STREAM, 0, 4)
    flip(directory_of(store) / "start.json", 30)
    flip(segment_of(store, 4).tokens, INFO.block_bytes + 1)  # block 5
    for path in segment_of(store, 8).all:
        path.unlink(missing_ok=True)
    flip(segment_of(store, 12).index, 50)
    segment_of(store, 12).megatron.unlink()
    segment_of(store, 16).manifest.write_bytes(b"?")
    flip(segment_of(store, 20).documents, 2)  # block 20


def _repair(root: Path, say: Say) -> None:
    store = Store.open(_path(root))
    donor = ChainDonor(CHAIN, INFO, lacks={*range(BLOCKS)} - {*BROKEN})
    for repaired in repair_partition(directory_of(store), INFO, 0, donor):
        assert not repaired.lost, repaired
    say(1)


def _judge_repaired(root: Path, said: int, found: Tree) -> None:
    """Let a worker come first, which makes nothing worse; then mend all, and find what was damaged still there."""
    store = Store.open(_path(root))
    try:
        PartitionWriter.open(store, STREAM, 0).close()
    except DamagedError:
        assert not said
    _repair(root, lambda _: None)
    assert_holds(store.path, 4)
    assert list(repair_partition(directory_of(store), INFO, 0, NOTHING)) == []
    assert not (directory_of(store) / "repair").exists()
    PartitionWriter.open(store, STREAM, 0).close()
    assert contents(store) == whole_files(root.parent)
    _assert_kept(root, found)


def whole_files(beside: Path) -> Mapping[str, bytes]:
    """Return the files of the partition that `_damage` harms, as they were; made once below ``beside``."""
    root = beside / "whole"
    if not root.exists():
        retire(_filled(root).path, STREAM, 0, 4)
    return contents(Store.open(_path(root)))


def _assert_kept(root: Path, found: Tree) -> None:
    """Hold that every file that was there is still there, under its name or another one."""
    there = {content for content in real_tree(root).values() if content is not None}
    lost = [path for path, content in found.items() if content not in there and Path(path).name != "lock" and content]
    assert not lost


def _describe_wrongly(root: Path) -> None:
    directory = stream_directory(_filled(root).path, STREAM)
    (directory / STREAM_FILE).write_bytes(b"{")
    (directory / TOKENIZER_FILE).write_bytes(b"[")


def _describe(root: Path, say: Say) -> None:
    rewrite_description(_path(root), STREAM, lambda: (INFO, TOKENIZER))
    say(1)


def _judge_description(root: Path, said: int, found: Tree) -> None:
    """Find the damaged description, or the right one."""
    try:
        assert read_stream(_path(root), STREAM).encode() == INFO.encode()
    except DamagedError:
        assert not said
    _describe(root, lambda _: None)
    assert (stream_directory(_path(root), STREAM) / TOKENIZER_FILE).read_bytes() == TOKENIZER
    assert_holds(_path(root), 0)
    _assert_kept(root, found)


def _copy_elsewhere(root: Path) -> None:
    file = _filled(root).path / STORE_FILE
    file.write_bytes(file.read_bytes().replace(b"/store", b"/other"))


def _adopt(root: Path, say: Say) -> None:
    Store.adopt(_path(root))
    say(1)


def _is_foreign(root: Path) -> bool:
    return b"/other" in (_path(root) / STORE_FILE).read_bytes()


def _judge_adopted(root: Path, said: int, _: Tree) -> None:
    """Find it a stranger's, or ours; never nobody's."""
    if said:
        Store.open(_path(root))
    else:
        with pytest.raises(StoreError, match="If it was moved here") if _is_foreign(root) else nullcontext():
            Store.open(_path(root))
    _adopt(root, lambda _: None)
    assert_holds(_path(root), 0)


def _bring_eras(root: Path, say: Say) -> None:
    store = Store.open(_path(root))
    for _ in range(2):  # two writers, one after the other
        with EraWriter.open(store, STREAM) as writer:
            say(writer.next_number)
            for _ in range(2):
                writer.append(with_offsets(ERAS)[writer.next_number : writer.next_number + 2])
                say(writer.next_number)


def _judge_eras(root: Path, said: int, _: Tree) -> None:
    """Let a reader find as many as a writer goes on from: no fewer than were said, each what it was."""
    store = Store.open(_path(root))
    reader = EraReader(stream_directory(store.path, STREAM), INFO)
    assert said <= reader.eras
    assert [reader.era(number) for number in range(reader.eras)] == ERAS[: reader.eras]
    with EraWriter.open(store, STREAM) as writer:
        assert writer.next_number == reader.eras
        writer.append(with_offsets(ERAS)[writer.next_number :])
    reader = EraReader(stream_directory(store.path, STREAM), INFO)
    assert [reader.era(number) for number in range(reader.eras)] == ERAS


WORKS: Final[Mapping[str, Work]] = {
    "retire": Work(_filled, _retire, _judge_retired),
    "repair": Work(_damage, _repair, _judge_repaired),
    "describe": Work(_describe_wrongly, _describe, _judge_description),
    "adopt": Work(_copy_elsewhere, _adopt, _judge_adopted),
    "begin late": Work(Path.mkdir, _begin_late, _judge_late),
    "eras": Work(_filled, _bring_eras, _judge_eras),
}


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
@pytest.mark.cases(3)
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
                work.judge(root, said, found)
            trial.fired(f"kills, then power losses: {name}")
    trial.held("exact", "complete")
