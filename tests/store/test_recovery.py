"""Recovery: the longest committed prefix, nothing more cut off, and damage refused."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import (
    STREAM,
    contents,
    directory_of,
    fill,
    filled_store,
    make_chain,
    make_info,
    make_store,
    segment_of,
)
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import DamagedError
from tokenmill.store import PartitionWriter, Store, open_partition
from tokenmill.store.writer import Recovered, recover_partition

INFO = make_info(segment_blocks=12)
CHAIN = make_chain(INFO, 30)
ENDS = (3, 4, 6, 9)
"""Where the open segment of these tests was committed."""


@dataclass(frozen=True)
class Scene:
    """An open segment with four commits: its files, and their lengths after each commit."""

    directory: Path
    files: dict[str, bytes]
    lengths: list[dict[str, int]]

    def recover(self, **changed: bytes) -> Recovered:
        """Put the files in place, some of them changed, and recover."""
        for suffix, data in (self.files | changed).items():
            (self.directory / f"{0:012d}.{suffix}").write_bytes(data)
        return recover_partition(self.directory, INFO, 0)

    def sizes(self) -> dict[str, int]:
        return {suffix: (self.directory / f"{0:012d}.{suffix}").stat().st_size for suffix in self.files}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Write the segment once; every test puts its files in place again."""
    store = make_store(tmp_path_factory.mktemp("store"), INFO)
    directory = directory_of(store)
    lengths = [{"bin": 0, "docs": 0, "commits": 0}]
    for end in ENDS:
        fill(store, INFO, CHAIN, [end])
        lengths.append({name: (directory / f"{0:012d}.{name}").stat().st_size for name in lengths[0]})
    return Scene(directory, {name: (directory / f"{0:012d}.{name}").read_bytes() for name in lengths[0]}, lengths)


def flip(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


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
def test_committed_bytes_that_are_missing_are_damage(scene: Scene, suffix: str) -> None:
    """At every byte: the record came after them, so they were there."""
    for length in range(scene.lengths[2][suffix], scene.lengths[4][suffix]):
        with pytest.raises(DamagedError, match=rf"{0:012d}\.{suffix}: .*committed"):
            scene.recover(**{suffix: scene.files[suffix][:length]})


@pytest.mark.parametrize("suffix", ["bin", "docs"])
def test_a_committed_file_that_was_removed_is_called_missing(scene: Scene, suffix: str) -> None:
    """Not empty, as after a full disk; and the command that makes it again is named."""
    scene.recover()
    (scene.directory / f"{0:012d}.{suffix}").unlink()
    with pytest.raises(DamagedError, match=rf"{0:012d}\.{suffix}: it is missing\. .*tokenmill repair {STREAM} 0 "):
        recover_partition(scene.directory, INFO, 0)


@pytest.mark.parametrize("suffix", ["bin", "docs"])
def test_a_flip_in_the_blocks_of_the_last_commit_is_damage(scene: Scene, suffix: str) -> None:
    for at in range(scene.lengths[3][suffix], scene.lengths[4][suffix]):
        with pytest.raises(DamagedError, match=rf"{0:012d}\.{suffix}: .*block"):
            scene.recover(**{suffix: flip(scene.files[suffix], at)})


@pytest.mark.cases(1)
@pytest.mark.parametrize("suffix", ["bin", "docs"])
@pytest.mark.slow
def test_a_flip_in_older_blocks_is_found_by_a_checking_reader(scene: Scene, suffix: str) -> None:
    """Recovery reads the last commit alone; a reader that checks refuses the block, and only that."""
    for at in range(scene.lengths[2][suffix]):
        scene.recover(**{suffix: flip(scene.files[suffix], at)})
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
    log = flip(scene.files["commits"], at, data.draw(st.integers(0, 7)))
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
    assert {suffix: (scene.directory / f"{0:012d}.{suffix}").read_bytes() for suffix in scene.files} == scene.files


def test_recovery_changes_nothing_where_nothing_happened(scene: Scene) -> None:
    for _ in range(2):
        found = scene.recover()
        assert (len(found.rows), found.truncated_bytes, found.source_offset) == (ENDS[-1], 0, ENDS[-1])
        assert found.rows["chain"][-1].tobytes() == CHAIN.chains[ENDS[-1] - 1]


def test_a_missing_commit_log_is_damage(scene: Scene) -> None:
    """The files are created together, before anything is written to one of them."""
    scene.recover()
    (scene.directory / f"{0:012d}.commits").unlink()
    with pytest.raises(DamagedError, match="commit log is missing"):
        recover_partition(scene.directory, INFO, 0)


@pytest.mark.parametrize("created", [[], ["bin"], ["bin", "docs"], ["bin", "docs", "commits"]])
def test_a_crash_while_creating_a_segment_leaves_an_empty_one(tmp_path: Path, created: list[str]) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [12])
    assert not (directory_of(store) / f"{12:012d}.bin").exists()
    for suffix in created:
        (directory_of(store) / f"{12:012d}.{suffix}").touch()
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain, writer.source_hint) == (12, CHAIN.chains[11], 12)


def sealed_store(path: Path) -> Store:
    """Return a store with two sealed segments and an open one."""
    return filled_store(path, INFO, CHAIN, [12, 20, 30])


@pytest.mark.parametrize("suffix", ["bin", "docs", "commits"])
def test_a_lost_open_segment_is_written_again(tmp_path: Path, suffix: str) -> None:
    """The error says what to do; without the files, moved away by hand, the partition goes on before them, too."""
    store = sealed_store(tmp_path)
    whole = contents(store)
    file = segment_of(store, 24).directory / f"{24:012d}.{suffix}"
    file.write_bytes(file.read_bytes()[:-1] if suffix != "commits" else flip(file.read_bytes(), 0) + file.read_bytes())
    with pytest.raises(DamagedError, match=r"run `tokenmill repair raw-text\.train 0 --store "):
        PartitionWriter.open(store, STREAM, 0)
    for left in directory_of(store).glob(f"{24:012d}.*"):
        left.unlink()
    fill(store, INFO, CHAIN, [30])
    assert contents(store) == whole


def test_sealed_segments_need_no_commit_log(tmp_path: Path) -> None:
    old = sealed_store(tmp_path / "old")
    new = make_store(tmp_path / "new", INFO)
    directory_of(new).mkdir()
    for file in directory_of(old).glob("0*"):
        if file.suffix != ".commits" and not file.name.startswith(f"{24:012d}"):
            shutil.copy(file, directory_of(new))
    with PartitionWriter.open(new, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain, writer.source_hint) == (24, CHAIN.chains[23], -1)
        assert [writer.chain_before(block) for block in range(25)][1:] == list(CHAIN.chains[:24])
    fill(new, INFO, CHAIN, [30])
    assert contents(new) == contents(old)


def test_a_partition_may_begin_after_block_0(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    retire(store.path, STREAM, 0, 12)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain) == (30, CHAIN.chains[29])
        assert writer.chain_before(11) is None
        assert writer.chain_before(12) == CHAIN.chains[11]
        assert writer.chain_before(13) == CHAIN.chains[12]
    assert open_partition(store.path, STREAM, 0).first_block == 12


def lose(store: Store, first: int, *suffixes: str) -> None:
    for suffix in suffixes:
        for file in list(directory_of(store).glob(f"{first:012d}.{suffix}")):
            file.unlink()


def test_an_open_segment_of_another_chain_is_refused(tmp_path: Path) -> None:
    """Its commit log is whole and does not say whose it is; its first block does."""
    store = sealed_store(tmp_path / "a")
    other = make_store(tmp_path / "b", INFO)
    fill(other, INFO, make_chain(INFO, 30, seed=1), [12, 20, 30])
    for file in directory_of(other).glob(f"{24:012d}.*"):
        shutil.copy(file, directory_of(store))
    with pytest.raises(DamagedError, match="block 24 does not continue the chain"):
        PartitionWriter.open(store, STREAM, 0)


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
    tmp_path: Path, damage: Callable[[Store], None], named: str
) -> None:
    """A later segment proves that one was there, and nothing says that the partition begins after the first."""
    store = sealed_store(tmp_path)
    damage(store)
    with pytest.raises(DamagedError, match=named):
        PartitionWriter.open(store, STREAM, 0)


def test_a_lost_manifest_is_made_again(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    whole = contents(store)
    lose(store, 12, "json", "index")
    fill(store, INFO, CHAIN, [])
    assert contents(store) == whole


@pytest.mark.parametrize("suffix", ["bin", "docs", "index", "json"])
def test_damage_to_the_last_sealed_segment_is_refused(tmp_path: Path, suffix: str) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [12])
    for file in directory_of(store).glob(f"{12:012d}.*"):
        file.unlink()
    file = directory_of(store) / f"{0:012d}.{suffix}"
    data = file.read_bytes()
    file.write_bytes(flip(data, len(data) - 2))
    with pytest.raises(DamagedError, match=file.name):
        PartitionWriter.open(store, STREAM, 0)
    if suffix != "json":
        file.unlink()
        with pytest.raises(DamagedError, match=f"{file.name}: it is missing"):
            PartitionWriter.open(store, STREAM, 0)


def test_a_segment_of_another_stream_is_refused(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    shutil.copytree(directory_of(store), directory_of(store, 1))
    with pytest.raises(DamagedError, match="belongs elsewhere"):
        PartitionWriter.open(store, STREAM, 1)
