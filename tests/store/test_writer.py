"""The writer of a partition, and recovery: the longest committed prefix, durable again, and damage refused."""

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.crashes import NOBODY, Op, Recording, real_tree
from tests.store.chains import (
    STREAM,
    contents,
    cut,
    directory_of,
    fill,
    filled_store,
    flipped,
    make_chain,
    make_info,
    make_store,
    segment_of,
)
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import DamagedError, DiskError, GapError, InputError, LockedError, StoreError
from tokenmill.reading import Blocks
from tokenmill.store import PartitionWriter, Start, Store, open_partition
from tokenmill.store.layout import SegmentPaths
from tokenmill.store.sealing import Manifest, scan
from tokenmill.store.sealing import seal as real_seal
from tokenmill.store.store import write_start
from tokenmill.store.writer import Recovered, recover_partition

INFO = make_info()
CHAIN = make_chain(INFO, 30)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(filled_store(tmp_path_factory.mktemp("store"), INFO, CHAIN, [22]))


@given(st.lists(st.integers(1, 9), max_size=12), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
@pytest.mark.slow
def test_stores_are_equal_however_messages_and_commits_were_cut(
    tmp_path_factory: pytest.TempPathFactory,
    whole: dict[str, bytes],
    sizes: list[int],
    commits: set[int],
    restarts: set[int],
) -> None:
    store = make_store(tmp_path_factory.mktemp("store"), INFO)
    writer = PartitionWriter.open(store, STREAM, 0)
    for n, end in enumerate([*itertools.accumulate(sizes), 22]):
        if writer.next_block < min(end, 22):
            writer.append(cut(CHAIN, INFO, writer.next_block, min(end, 22)), token_offset=n)
        if n in commits:
            writer.commit()
        if n in restarts:
            writer.close()
            writer = PartitionWriter.open(store, STREAM, 0)
    if writer.next_block < 22:
        writer.append(cut(CHAIN, INFO, writer.next_block, 22), token_offset=99)
    writer.commit()
    writer.close()
    assert contents(store) == whole


def test_blocks_count_only_after_their_commit(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    reader = open_partition(store.path, STREAM, 0)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 0, 2), token_offset=7)
        writer.commit()
        writer.append(cut(CHAIN, INFO, 2, 3), token_offset=8)
        assert (writer.next_block, reader.refresh()) == (3, 2)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain, writer.source_hint) == (2, CHAIN.chains[1], 7)
        assert writer.truncated_bytes == INFO.block_bytes + len(CHAIN.entries[2])
        assert reader.refresh() == 2


def test_a_new_partition_begins_at_block_0_and_has_one_writer(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    chain = make_chain(INFO, 1, partition=3)
    with PartitionWriter.open(store, STREAM, 3) as writer:
        assert (writer.next_block, writer.source_hint, writer.truncated_bytes) == (0, -1, 0)
        assert writer.chain == writer.chain_before(0)
        writer.append(chain, token_offset=0)
        assert (writer.chain_before(1), writer.chain_before(2)) == (chain.chains[0], None)
        with pytest.raises(LockedError):
            PartitionWriter.open(store, STREAM, 3)
        PartitionWriter.open(store, STREAM, 1).close()
    with pytest.raises(StoreError, match="no stream"):
        PartitionWriter.open(store, "other", 0)


def test_the_hash_before_any_block_is_known(tmp_path: Path) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [5, 9])
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 9, 11), token_offset=0)
        assert [writer.chain_before(block) for block in range(1, 13)] == [*CHAIN.chains[:11], None]


def test_blocks_must_continue_the_chain_and_be_whole(tmp_path: Path) -> None:
    good = cut(CHAIN, INFO, 0, 2)
    with PartitionWriter.open(make_store(tmp_path, INFO), STREAM, 0) as writer:
        for bad in (
            Blocks(0, good.tokens[:-1], good.entries, good.chains),
            Blocks(0, good.tokens, good.entries[:1], good.chains),
            Blocks(0, good.tokens, good.entries, good.chains[:1]),
        ):
            with pytest.raises(InputError):
                writer.append(bad, token_offset=0)
        assert writer.next_block == 0
        writer.append(good, token_offset=0)
        for first in (0, 3):
            with pytest.raises(GapError, match=f"wants block 2 and was given block {first}"):
                writer.append(cut(CHAIN, INFO, first, 5), token_offset=1)
        writer.append(cut(CHAIN, INFO, 2, 5), token_offset=1)
        assert writer.next_block == 5


class FailingDisk:
    """One of the system's calls that write, sync, rename and open fails: the nth, once."""

    def __init__(self, patch: pytest.MonkeyPatch, nth: int, code: int) -> None:
        self.left = nth
        self._code = code
        for name in ("pwrite", "fdatasync", "fsync", "open", "rename"):
            patch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "pwrite" and self._code == errno.ENOSPC:  # a full disk takes a part
                    descriptor, data, offset = args
                    call(descriptor, bytes(data)[: len(data) // 2], offset)
                raise OSError(self._code, os.strerror(self._code))
            return call(*args, **named)

        return wrapper


def write_until_it_fails(store: Store) -> int:
    """Append and commit until the disk fails or all is written; return what was committed by then."""
    committed, writer = 0, None
    try:
        writer = PartitionWriter.open(store, STREAM, 0)
        for end in (3, 4, 9, 11):
            writer.append(cut(CHAIN, INFO, writer.next_block, end), token_offset=end)
            writer.commit()
            committed = end
    except StoreError:
        if writer is not None:
            with pytest.raises(StoreError, match="is closed"):
                writer.commit()
    else:
        writer.close()
    return committed


@pytest.mark.cases(1)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.slow
def test_after_any_failed_call_the_writer_is_closed_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes], code: int
) -> None:
    """What had been committed stands; with the disk mended, the store becomes what it would have been."""
    for nth in itertools.count(1):
        store = make_store(tmp_path / str(nth), INFO)
        with monkeypatch.context() as patch:
            disk = FailingDisk(patch, nth, code)
            committed = write_until_it_fails(store)
        with PartitionWriter.open(store, STREAM, 0) as again:
            assert again.next_block >= committed
            again.append(cut(CHAIN, INFO, again.next_block, 22), token_offset=0)
            again.commit()
        assert contents(store) == whole
        if disk.left > 0:
            break
        assert committed < 11


def test_nothing_is_committed_where_nobody_would_look_for_it(tmp_path: Path) -> None:
    """A directory that was moved away, or over which another one lies, takes no more; in its place again, it does."""
    store = make_store(tmp_path, INFO)
    directory = directory_of(store)
    for lies_over in (False, True):
        with PartitionWriter.open(store, STREAM, 0) as writer:
            writer.append(cut(CHAIN, INFO, 0, 1), token_offset=0)
            directory.rename(tmp_path / "away")
            if lies_over:
                directory.mkdir()
            with pytest.raises(DiskError, match="Stale file handle" if lies_over else "No such file or directory"):
                writer.commit()
        if lies_over:
            directory.rmdir()
        (tmp_path / "away").rename(directory)
    fill(store, INFO, CHAIN, [1])
    assert open_partition(store.path, STREAM, 0).blocks == 1


def test_a_failed_write_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PartitionWriter.open(make_store(tmp_path, INFO), STREAM, 0) as writer:
        FailingDisk(monkeypatch, 1, errno.ENOSPC)
        with pytest.raises(StoreError, match=r"No space left on device.*committed is kept"):
            writer.append(cut(CHAIN, INFO, 0, 1), token_offset=0)


def test_a_full_segment_is_committed_before_it_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest vouches for what is durable: all blocks stand in the commit log, behind their data."""
    committed: list[int] = []

    def seal(paths: SegmentPaths, *arguments: Any, **options: Any) -> Manifest:
        found = scan(paths.commits.read_bytes(), block_bytes=INFO.block_bytes, segment_blocks=INFO.segment_blocks)
        committed.append(len(found.rows))
        return real_seal(paths, *arguments, **options)

    monkeypatch.setattr("tokenmill.store.sealing.seal", seal)
    filled_store(tmp_path, INFO, CHAIN, [10])
    assert committed == [INFO.segment_blocks] * (10 // INFO.segment_blocks)


LARGE = make_info(segment_blocks=12)
LONG = make_chain(LARGE, 30)
ENDS = (3, 4, 6, 9)
"""Where the open segment of these tests was committed."""


@dataclass(frozen=True)
class Scene:
    """An open segment with four commits: its files, and their lengths after each commit."""

    directory: Path
    files: dict[str, bytes]
    lengths: list[dict[str, int]]

    def file(self, suffix: str) -> Path:
        return self.directory / f"{0:012d}.{suffix}"

    def recover(self, **changed: bytes) -> Recovered:
        """Put the files in place, some of them changed, and recover."""
        for suffix, data in (self.files | changed).items():
            self.file(suffix).write_bytes(data)
        return recover_partition(self.directory, LARGE, 0)

    def sizes(self) -> dict[str, int]:
        return {suffix: self.file(suffix).stat().st_size for suffix in self.files}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Write the segment once; every test puts its files in place again."""
    store = make_store(tmp_path_factory.mktemp("store"), LARGE)
    directory = directory_of(store)
    lengths = [{"bin": 0, "docs": 0, "commits": 0}]
    for end in ENDS:
        fill(store, LARGE, LONG, [end])
        lengths.append({name: (directory / f"{0:012d}.{name}").stat().st_size for name in lengths[0]})
    return Scene(directory, {name: (directory / f"{0:012d}.{name}").read_bytes() for name in lengths[0]}, lengths)


def test_a_log_cut_anywhere_in_the_last_two_commits_gives_the_commit_before(scene: Scene) -> None:
    for length in range(scene.lengths[2]["commits"], scene.lengths[4]["commits"]):
        last = 2 if length < scene.lengths[3]["commits"] else 3
        found = scene.recover(commits=scene.files["commits"][:length])
        assert len(found.rows) == ENDS[last - 1]
        assert scene.sizes() == scene.lengths[last]


@pytest.mark.parametrize("suffix", ["bin", "docs"])
def test_a_tail_cut_anywhere_before_its_commit_is_cut_off(scene: Scene, suffix: str) -> None:
    """A crash before the record leaves any part of data and table."""
    log = scene.files["commits"][: scene.lengths[3]["commits"]]
    for length in range(scene.lengths[3][suffix], scene.lengths[4][suffix] + 1):
        found = scene.recover(commits=log, **{suffix: scene.files[suffix][:length]})
        assert len(found.rows) == ENDS[2]
        assert scene.sizes() == scene.lengths[3]
        whole = sum(scene.lengths[4].values()) - scene.lengths[4]["commits"] + scene.lengths[3]["commits"]
        missing = scene.lengths[4][suffix] - length
        assert found.truncated_bytes == whole - missing - sum(scene.lengths[3].values())


@pytest.mark.parametrize("suffix", ["bin", "docs"])
def test_committed_bytes_that_are_missing_or_other_ones_are_damage(scene: Scene, suffix: str) -> None:
    """At every byte: the record came after them, so they were there."""
    for length in range(scene.lengths[2][suffix], scene.lengths[4][suffix]):
        with pytest.raises(DamagedError, match=rf"{0:012d}\.{suffix}: .*committed"):
            scene.recover(**{suffix: scene.files[suffix][:length]})
    for at in range(scene.lengths[3][suffix], scene.lengths[4][suffix]):
        with pytest.raises(DamagedError, match=rf"{0:012d}\.{suffix}: .*block"):
            scene.recover(**{suffix: flipped(scene.files[suffix], at)})


MISSING = r"{0:012d}\.{1}: it is missing\. .*tokenmill repair {2} 0 "


@pytest.mark.parametrize(
    ("suffix", "said"), [("bin", MISSING), ("docs", MISSING), ("commits", "commit log is missing")]
)
def test_a_committed_file_that_was_removed_is_called_missing(scene: Scene, suffix: str, said: str) -> None:
    """Not empty, as after a full disk: all are created before anything is written to one of them."""
    scene.recover()
    scene.file(suffix).unlink()
    with pytest.raises(DamagedError, match=said.format(0, suffix, STREAM)):
        recover_partition(scene.directory, LARGE, 0)


@pytest.mark.cases(1)
@pytest.mark.parametrize("suffix", ["bin", "docs"])
@pytest.mark.slow
def test_a_flip_in_older_blocks_is_found_by_a_checking_reader(scene: Scene, suffix: str) -> None:
    """Recovery reads the last commit alone; a reader that checks refuses the block, and only that."""
    for at in range(scene.lengths[2][suffix]):
        scene.recover(**{suffix: flipped(scene.files[suffix], at)})
        reader = open_partition(scene.directory.parent.parent, STREAM, 0, check=True)
        refused = []
        for block in range(ENDS[-1]):
            try:
                reader.read(block)
                reader.documents(block)
            except DamagedError as error:
                refused.append(str(error))
        assert len(refused) == 1
        assert f"{0:012d}.{suffix}: " in refused[0]


@given(st.data())
def test_a_flip_in_the_log_is_damage_unless_it_is_in_the_last_record(scene: Scene, data: st.DataObject) -> None:
    """The last record may never have been written whole, so the commit before it counts."""
    at = data.draw(st.integers(0, scene.lengths[4]["commits"] - 1))
    log = flipped(scene.files["commits"], at, data.draw(st.integers(0, 7)))
    if at < scene.lengths[3]["commits"]:
        with pytest.raises(DamagedError, match=r"\.commits: the commit record at byte"):
            scene.recover(commits=log)
    else:
        assert len(scene.recover(commits=log).rows) == ENDS[2]
        assert scene.sizes() == scene.lengths[3]


@given(st.binary(max_size=99), st.binary(max_size=99), st.binary(max_size=99))
def test_an_uncommitted_tail_is_cut_off_whatever_it_holds(scene: Scene, tokens: bytes, docs: bytes, log: bytes) -> None:
    files = {"bin": scene.files["bin"] + tokens, "docs": scene.files["docs"] + docs}
    found = scene.recover(**files, commits=scene.files["commits"] + log)
    assert found.truncated_bytes == len(tokens) + len(docs) + len(log)
    assert {suffix: scene.file(suffix).read_bytes() for suffix in scene.files} == scene.files


def test_recovery_changes_nothing_where_nothing_happened(scene: Scene) -> None:
    for found in (scene.recover(), recover_partition(scene.directory, LARGE, 0)):
        assert (len(found.rows), found.truncated_bytes, found.source_offset) == (ENDS[-1], 0, ENDS[-1])
        assert found.rows["chain"][-1].tobytes() == LONG.chains[ENDS[-1] - 1]


@pytest.mark.parametrize("created", [[], ["bin"], ["bin", "docs"], ["bin", "docs", "commits"]])
def test_a_crash_while_creating_a_segment_leaves_an_empty_one(tmp_path: Path, created: list[str]) -> None:
    store = filled_store(tmp_path, LARGE, LONG, [12])
    assert not (directory_of(store) / f"{12:012d}.bin").exists()
    for suffix in created:
        (directory_of(store) / f"{12:012d}.{suffix}").touch()
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain, writer.source_hint) == (12, LONG.chains[11], 12)


@pytest.fixture
def sealed(tmp_path: Path) -> Store:
    """Return a store with two sealed segments and an open one."""
    return filled_store(tmp_path / "sealed", LARGE, LONG, [12, 20, 30])


@pytest.mark.parametrize("suffix", ["bin", "docs", "commits"])
def test_a_lost_open_segment_is_written_again(sealed: Store, suffix: str) -> None:
    """The error says what to do; without the files, moved away by hand, the partition goes on before them, too."""
    whole = contents(sealed)
    file = directory_of(sealed) / f"{24:012d}.{suffix}"
    data = file.read_bytes()
    file.write_bytes(data[:-1] if suffix != "commits" else flipped(data, 0) + data)
    with pytest.raises(DamagedError, match=r"run `tokenmill repair raw-text\.train 0 --store "):
        PartitionWriter.open(sealed, STREAM, 0)
    lose(sealed, 24, "*")
    fill(sealed, LARGE, LONG, [30])
    assert contents(sealed) == whole


def test_sealed_segments_need_no_commit_log(sealed: Store, tmp_path: Path) -> None:
    new = make_store(tmp_path / "new", LARGE)
    directory_of(new).mkdir()
    for file in directory_of(sealed).glob("0*"):
        if file.suffix != ".commits" and not file.name.startswith(f"{24:012d}"):
            shutil.copy(file, directory_of(new))
    with PartitionWriter.open(new, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain, writer.source_hint) == (24, LONG.chains[23], -1)
        assert [writer.chain_before(block) for block in range(25)][1:] == list(LONG.chains[:24])
    fill(new, LARGE, LONG, [30])
    assert contents(new) == contents(sealed)


def test_a_partition_may_begin_after_block_0(sealed: Store) -> None:
    retire(sealed.path, STREAM, 0, 12)
    with PartitionWriter.open(sealed, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain) == (30, LONG.chains[29])
        assert [writer.chain_before(block) for block in (11, 12, 13)] == [None, *LONG.chains[11:13]]
    assert open_partition(sealed.path, STREAM, 0).first_block == 12


def lose(store: Store, first: int, *suffixes: str) -> None:
    for suffix in suffixes:
        for file in list(directory_of(store).glob(f"{first:012d}.{suffix}")):
            file.unlink()


def test_an_open_segment_of_another_chain_is_refused(sealed: Store, tmp_path: Path) -> None:
    """Its commit log is whole and does not say whose it is; its first block does."""
    other = filled_store(tmp_path / "other", LARGE, make_chain(LARGE, 30, seed=1), [12, 20, 30])
    for file in directory_of(other).glob(f"{24:012d}.*"):
        shutil.copy(file, directory_of(sealed))
    with pytest.raises(DamagedError, match="block 24 does not continue the chain"):
        PartitionWriter.open(sealed, STREAM, 0)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda store: lose(store, 12, "*"), f"{12:012d}"),
        (lambda store: lose(store, 12, "json", "commits"), f"{12:012d}"),
        (lambda store: lose(store, 0, "*"), rf"{0:012d}\.bin: it is missing"),
        (lambda store: (directory_of(store) / f"{5:012d}.bin").touch(), "multiple of 12"),
    ],
    ids=["a hole", "what tells which blocks count", "a first segment that nobody retired", "an impossible place"],
)
def test_segments_that_do_not_follow_each_other_are_damage(
    sealed: Store, damage: Callable[[Store], None], named: str
) -> None:
    """A later segment proves that one was there, and nothing says that the partition begins after the first."""
    damage(sealed)
    with pytest.raises(DamagedError, match=named):
        PartitionWriter.open(sealed, STREAM, 0)


def test_a_lost_manifest_is_made_again(sealed: Store) -> None:
    whole = contents(sealed)
    lose(sealed, 12, "json", "index")
    fill(sealed, LARGE, LONG, [])
    assert contents(sealed) == whole


@pytest.mark.parametrize("suffix", ["bin", "docs", "index", "json"])
def test_damage_to_the_last_sealed_segment_is_refused(tmp_path: Path, suffix: str) -> None:
    store = filled_store(tmp_path, LARGE, LONG, [12])
    lose(store, 12, "*")
    file = directory_of(store) / f"{0:012d}.{suffix}"
    data = file.read_bytes()
    file.write_bytes(flipped(data, len(data) - 2))
    with pytest.raises(DamagedError, match=file.name):
        PartitionWriter.open(store, STREAM, 0)
    if suffix != "json":
        file.unlink()
        with pytest.raises(DamagedError, match=f"{file.name}: it is missing"):
            PartitionWriter.open(store, STREAM, 0)


def test_a_segment_of_another_partition_is_refused(sealed: Store) -> None:
    shutil.copytree(directory_of(sealed), directory_of(sealed, 1))
    with pytest.raises(DamagedError, match="belongs elsewhere"):
        PartitionWriter.open(sealed, STREAM, 1)


OTHER = make_chain(INFO, 2, partition=1)
DIRECTORY = f"{STREAM}/0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with two sealed segments of four blocks, and three blocks in an open one, in two commits."""
    return filled_store(tmp_path, INFO, CHAIN, [10, 11])


def recorded(store: Store) -> Recording:
    record = Recording(store.path)
    record.start_from(real_tree(store.path))
    record.ops.clear()
    return record


def last_record(store: Store) -> tuple[int, bytes]:
    log = segment_of(store, 8).commits.read_bytes()
    record = scan(log, block_bytes=INFO.block_bytes, segment_blocks=INFO.segment_blocks).commits[-1].encode()
    assert log.endswith(record)
    return len(log) - len(record), record


def index_of(ops: list[Op], **wanted: object) -> int:
    return next(n for n, op in enumerate(ops) if all(getattr(op, name) == value for name, value in wanted.items()))


def test_the_last_commit_record_is_written_again_and_synced(store: Store) -> None:
    """Whoever wrote it may have died before its sync: a sync without the write would sync nothing that is clean."""
    offset, data = last_record(store)
    before = segment_of(store, 8).commits.read_bytes()
    record = recorded(store)
    with record.running(), PartitionWriter.open(store, STREAM, 0) as writer:
        assert writer.next_block == 11
    path = f"{DIRECTORY}/{8:012d}.commits"
    written = index_of(record.ops, kind="write", path=path, offset=offset, data=data)
    synced = [n for n, op in enumerate(record.ops) if (op.kind, op.path, op.failed) == ("sync", path, False)]
    assert max(synced) > written
    assert segment_of(store, 8).commits.read_bytes() == before


def test_a_commit_whose_sync_failed_is_written_again_by_the_next_writer(store: Store) -> None:
    """The page cache shows it, clean: a sync alone would not bring it to the disk. The writer that failed is closed."""
    syncs = {"fdatasync": 0}

    def third(call: str, _number: int) -> int | None:
        syncs[call] = syncs.get(call, 0) + 1
        return errno.EIO if call == "fdatasync" and syncs[call] == 3 else None  # tokens, documents, and then the log

    record = Recording(store.path, third)
    record.start_from(real_tree(store.path))
    with record.running(), PartitionWriter.open(store, STREAM, 1) as writer:
        writer.append(cut(OTHER, INFO, 0, 2), token_offset=1)
        with pytest.raises(DiskError):
            writer.commit()
        with pytest.raises(StoreError, match="is closed"):
            writer.commit()
    log = directory_of(store, 1) / f"{0:012d}.commits"
    left = log.read_bytes()
    again = recorded(store)
    with again.running(), PartitionWriter.open(store, STREAM, 1) as writer:
        assert writer.next_block == 2
    path = f"{STREAM}/1/{0:012d}.commits"
    written = index_of(again.ops, kind="write", path=path, offset=0, data=left)
    assert written < index_of(again.ops, kind="sync", path=path, failed=False)


def test_a_refused_sync_at_recovery_gives_no_writer(store: Store) -> None:
    """Of the log that is written again, or of the directory of a start that was raised."""
    write_start(directory_of(store), Start(4, CHAIN.chains[3]))
    for number in range(1, 4):
        asked = [0]

        def fails(call: str, _number: int, asked: list[int] = asked, number: int = number) -> int | None:
            asked[0] += call == "fsync"
            return errno.EIO if call == "fsync" and asked[0] == number else None

        record = Recording(store.path, fails)
        record.start_from(real_tree(store.path))
        with record.running(), pytest.raises(DiskError):
            PartitionWriter.open(store, STREAM, 0)
        assert record.failed == ["fsync"]
        if number < 3:  # of the directories: nothing was unlinked that hangs on the start
            assert segment_of(store, 0).tokens.exists()


def test_a_raised_start_is_synced_before_a_writer_unlinks_what_is_below(store: Store) -> None:
    """Who raised it may have died between the rename and its sync: a start that goes back would miss its segments."""
    write_start(directory_of(store), Start(4, CHAIN.chains[3]))
    record = recorded(store)
    with record.running():
        PartitionWriter.open(store, STREAM, 0).close()
    synced = index_of(record.ops, kind="sync", node=NOBODY, path=DIRECTORY, failed=False)
    unlinked = index_of(record.ops, kind="unlink", path=f"{DIRECTORY}/{0:012d}.bin")
    assert synced < unlinked
    assert open_partition(store.path, STREAM, 0).first_block == 4


@pytest.mark.parametrize("below", [4, 0])
def test_a_raised_start_is_synced_before_retiring_goes_on(store: Store, below: int) -> None:
    """By the same command again, also where it wants less than the one that was cut off."""
    write_start(directory_of(store), Start(4, CHAIN.chains[3]))
    record = recorded(store)
    with record.running():
        assert retire(store.path, STREAM, 0, below).segments == 1
    synced = index_of(record.ops, kind="sync", node=NOBODY, path=DIRECTORY, failed=False)
    assert synced < index_of(record.ops, kind="unlink", path=f"{DIRECTORY}/{0:012d}.bin")


def test_a_start_is_durable_before_segments_below_it_go(store: Store) -> None:
    record = recorded(store)
    with record.running():
        assert retire(store.path, STREAM, 0, 4).segments == 1
    renamed = index_of(record.ops, kind="rename", path=f"{DIRECTORY}/start.json")
    content = index_of(record.ops, kind="sync", path=f"{DIRECTORY}/start.json.tmp", failed=False)
    name = index_of(record.ops[renamed:], kind="sync", node=NOBODY, path=DIRECTORY, failed=False) + renamed
    assert content < renamed < name < index_of(record.ops, kind="unlink", path=f"{DIRECTORY}/{0:012d}.bin")
