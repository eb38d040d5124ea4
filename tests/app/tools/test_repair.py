"""Repairs: whatever was damaged, the partition becomes byte for byte what it was, or says what nothing gives back."""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.store.chains import (
    STREAM,
    contents,
    directory_of,
    fill,
    make_chain,
    make_info,
    make_store,
    segment_of,
    tokens_of,
)
from tests.store.harm import ChainDonor, dies
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import Donor, Repaired, repair_partition, store_donor
from tokenmill.errors import DamagedError, DifferenceError, LockedError
from tokenmill.store import PartitionWriter, Store, maps, open_partition
from tokenmill.store.layout import SegmentPaths

INFO = make_info()
CHAIN = make_chain(INFO, 22)
NOBODY = ChainDonor(CHAIN, INFO, lacks=range(22))
EVERY = (*("bin", "docs", "index", "idx", "json"), "commits")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with five sealed segments of four blocks, and two blocks in an open one. Tests only read it."""
    store = make_store(tmp_path_factory.mktemp("whole"), INFO)
    fill(store, INFO, CHAIN, [1, 9, 21, 22])
    return store


def copy(whole: Store, path: Path) -> Store:
    """Return a store of its own with the same files."""
    store = make_store(path, INFO)
    shutil.copytree(directory_of(whole), directory_of(store), dirs_exist_ok=True)
    return store


def repair(store: Store, donor: Donor) -> list[Repaired]:
    """Repair partition 0."""
    return list(repair_partition(directory_of(store), INFO, 0, donor))


def states(store: Store) -> dict[str, tuple[int, int]]:
    """Return which file every name stands for, and when it was written."""
    found = [path for path in directory_of(store).iterdir() if path.name != "lock"]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file, which becomes another file as a backup would have it."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_nothing_is_touched_where_nothing_is_damaged(whole: Store, tmp_path: Path) -> None:
    """What was never committed is no damage, and the donor is asked for nothing."""
    store = copy(whole, tmp_path)
    with segment_of(store, 20).tokens.open("ab") as tail:
        tail.write(b"not committed")
    before = states(store)
    donor = ChainDonor(CHAIN, INFO)
    assert repair(store, donor) == []
    assert states(store) == before
    assert not donor.asked


@pytest.mark.cases(24)
@pytest.mark.parametrize("first", [0, 8, 16, 20])
@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("harm", ["flip", "cut", "lose"])
def test_one_damaged_file_is_mended(whole: Store, tmp_path: Path, first: int, suffix: str, harm: str) -> None:
    """It alone changes, and is kept; of the others' blocks none is asked for."""
    store = copy(whole, tmp_path)
    path = directory_of(store) / f"{first:012d}.{suffix}"
    if not path.exists() or (suffix == "commits" and first < 20):
        return  # an open segment has no index, a sealed one needs no log
    damaged = path.read_bytes()
    if harm == "flip":
        flip(path, 8 * (len(damaged) // 3))
    elif harm == "cut":
        path.write_bytes(damaged[: -len(damaged) // 3])
    else:
        path.unlink()
    damaged = path.read_bytes() if path.exists() else b""
    donor = ChainDonor(CHAIN, INFO)
    found = repair(store, donor)

    if not found:  # recovery mends it: a log's end counts as never written, and a manifest is made of a whole log
        assert suffix == "commits" or (suffix, harm) == ("json", "lose")
        fill(store, INFO, CHAIN, [22])
        assert contents(store) == contents(whole)
        return
    assert [damage.first for damage in found] == [first]
    assert path.name in found[0].what or suffix == "commits"
    assert contents(store) == contents(whole)
    kept = [path.with_name(f"{path.name}.broken")] if damaged else []
    assert [*found[0].kept] == kept
    assert [file.read_bytes() for file in kept] == [damaged] * len(kept)
    assert donor.asked <= set(range(first, first + 4))
    if suffix in {"index", "idx", "json"}:
        assert not donor.asked  # its own data, proven by hashes
    assert repair(store, NOBODY) == []
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain) == (22, CHAIN.chains[21])


def test_only_damaged_blocks_are_asked_for(whole: Store, tmp_path: Path) -> None:
    """The others are the segment's own."""
    store = copy(whole, tmp_path)
    flip(segment_of(store, 8).tokens, 8 * (INFO.block_bytes + 3))
    donor = ChainDonor(CHAIN, INFO, lacks={8, 10, 11})
    (found,) = repair(store, donor)
    assert (found.blocks, found.given, donor.asked) == (4, 1, {9})
    assert contents(store) == contents(whole)


FILES = [f"{first:012d}.{suffix}" for first in range(0, 20, 4) for suffix in EVERY]
FILES += [f"{20:012d}.{suffix}" for suffix in ("bin", "docs", "commits")]
HARMS = st.tuples(st.sampled_from(["flip", "cut", "lose"]), st.integers(0, 1 << 20))
"""What is done to a file, and where: in its length from its end on again."""


@given(harmed=st.dictionaries(st.sampled_from(FILES), HARMS, max_size=6))
@example({f"{0:012d}.json": ("lose", 0), f"{4:012d}.index": ("flip", 9), f"{4:012d}.json": ("flip", 9)})
@pytest.mark.slow
def test_any_damage_to_any_files_is_mended(
    whole: Store, tmp_path_factory: pytest.TempPathFactory, harmed: dict[str, tuple[str, int]]
) -> None:
    """Several flips, cuts and losses at once; afterwards the files are what they were, and the writer goes on."""
    store = copy(whole, tmp_path_factory.mktemp("store"))
    for path, (harm, place) in ((directory_of(store) / name, harm) for name, harm in harmed.items()):
        data = path.read_bytes()
        if harm == "flip":
            flip(path, place % (8 * len(data)))
        elif harm == "cut":
            path.write_bytes(data[: place % len(data)])
        else:
            path.unlink()
    assert not [found.lost for found in repair(store, ChainDonor(CHAIN, INFO)) if found.lost]
    fill(store, INFO, CHAIN, [22])
    assert contents(store) == contents(whole)
    assert repair(store, NOBODY) == []


def test_files_are_those_of_the_store(whole: Store) -> None:
    """So that each is harmed."""
    assert sorted(FILES) == sorted(path.name for path in directory_of(whole).iterdir() if path.name != "lock")


def test_what_nothing_gives_back_is_named_and_the_rest_mended(whole: Store, tmp_path: Path) -> None:
    """A segment that cannot be whole stays as it is: its other blocks are read as before."""
    store = copy(whole, tmp_path)
    flip(segment_of(store, 4).tokens, 0)
    flip(segment_of(store, 12).tokens, 0)
    lose_all(segment_of(store, 8))
    found = repair(store, ChainDonor(CHAIN, INFO, lacks={4, 9, 10}))
    assert [(f.first, [*f.lost], f.blocks) for f in found] == [
        (4, [range(4, 5)], 0),
        (8, [range(9, 11)], 0),
        (12, [], 4),
    ]
    reader = open_partition(store.path, STREAM, 0, check=True)
    assert reader.read(5).tobytes() == open_partition(whole.path, STREAM, 0).read(5).tobytes()
    assert reader.read(12).tobytes() == open_partition(whole.path, STREAM, 0).read(12).tobytes()
    with pytest.raises(DamagedError, match="block 4, "):
        reader.read(4)


def test_another_store_gives_blocks_back_even_if_it_is_damaged_itself(whole: Store, tmp_path: Path) -> None:
    """Each block comes from where it is whole; segments of another length are no matter."""
    info = make_info(segment_blocks=6)
    other = make_store(tmp_path / "other", info)
    fill(other, info, CHAIN, [22])
    store = copy(whole, tmp_path / "store")
    lose_all(segment_of(store, 4))
    flip(segment_of(store, 12).documents, 77)
    flip(segment_of(other, 6).tokens, 8 * 5 * INFO.block_bytes)  # block 11, which this store has
    found = repair(store, store_donor(other.path, INFO, 0))
    assert [f.given for f in found] == [4, 1]
    assert contents(store) == contents(whole)


@pytest.mark.parametrize("first", [0, 8])
def test_another_history_is_refused(whole: Store, tmp_path: Path, first: int) -> None:
    """Blocks that lead from the right hash to another, or continue another, are not taken; nothing changes."""
    store = copy(whole, tmp_path)
    lose_all(segment_of(store, first))
    before = contents(store)
    with pytest.raises(DifferenceError, match="another history"):
        repair(store, ChainDonor(make_chain(INFO, 22, seed=1), INFO))
    assert contents(store) == before


def test_a_foreign_segment_is_put_aside(whole: Store, tmp_path: Path) -> None:
    """Sealed or open, of another chain or where none can begin: what belongs there is written instead."""
    store = copy(whole, tmp_path / "store")
    other = make_store(tmp_path / "other", INFO)
    fill(other, INFO, make_chain(INFO, 22, partition=1, seed=1), [21, 22], partition=1)
    for first in (8, 20):
        for path in SegmentPaths(directory_of(other, 1), first).all:
            if path.exists():
                shutil.copy(path, directory_of(store))
    (directory_of(store) / f"{6:012d}.bin").write_bytes(b"?")
    found = repair(store, ChainDonor(CHAIN, INFO))
    assert [f.first for f in found] == [6, 8, 20]
    assert contents(store) == contents(whole)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert writer.chain == CHAIN.chains[21]


def test_a_damaged_start_is_told_by_the_oldest_segment(whole: Store, tmp_path: Path) -> None:
    """And kept; where the oldest segment is damaged as well, the repair says so."""
    store = copy(whole, tmp_path)
    retire(store.path, STREAM, 0, 8)
    file = directory_of(store) / "start.json"
    right = file.read_bytes()
    flip(file, 100)
    with pytest.raises(DamagedError, match=r"start\.json: .* run `tokenmill repair"):
        open_partition(store.path, STREAM, 0)
    assert repair(store, NOBODY) == []
    assert file.read_bytes() == right
    assert file.with_name("start.json.broken").exists()
    flip(file, 100)
    flip(segment_of(store, 8).manifest, 100)
    with pytest.raises(DamagedError, match=r"start\.json"):
        repair(store, NOBODY)


def test_a_repair_waits_for_nobody(whole: Store, tmp_path: Path) -> None:
    """A partition that is being written is refused."""
    store = copy(whole, tmp_path)
    with PartitionWriter.open(store, STREAM, 0), pytest.raises(LockedError):
        repair(store, NOBODY)


def lose_all(paths: SegmentPaths) -> None:
    """Unlink a segment."""
    for path in paths.all:
        path.unlink()


DAMAGES: dict[str, Callable[[Store], None]] = {
    "a sealed segment's data": lambda store: flip(segment_of(store, 8).tokens, 3),
    "all of it": lambda store: lose_all(segment_of(store, 8)),
    "the open one's table": lambda store: flip(segment_of(store, 20).documents, 3),
    "the open one's log": lambda store: flip(segment_of(store, 20).commits, 300),
}


def killed_repairs(
    whole: Store, path: Path, damage: Callable[[Store], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """Yield damaged stores, each after a repair that died at a later one of its calls that change something."""
    names = ("pwrite", "fdatasync", "fsync", "rename", "link", "unlink", "mkdir")
    for calls in count(1):
        store = copy(whole, path / str(calls))
        damage(store)
        if not dies(partial(repair, store, ChainDonor(CHAIN, INFO)), calls, names, monkeypatch):
            return
        yield store


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_repair_that_is_killed_anywhere_goes_on(
    whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Before each of its writes, syncs, renames and links; the donor has nothing left the second time that it gave."""
    kills = 0
    for store in killed_repairs(whole, tmp_path, DAMAGES[damage], monkeypatch):
        kills += 1
        reader = open_partition(store.path, STREAM, 0, on_damage="skip")
        assert reader.gather([0, 1, 16]).shape == (3, 5)
        repair(store, ChainDonor(CHAIN, INFO))
        assert contents(store) == contents(whole)
        assert not (directory_of(store) / "repair").exists()
        with PartitionWriter.open(store, STREAM, 0) as writer:
            assert writer.next_block == 22
    assert kills >= 20


def test_own_blocks_outlive_a_kill_while_files_change_places(
    whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the rebuilt segment is ready, no donor is needed any more, though its own files may be moved already."""
    ready = 0
    for store in killed_repairs(whole, tmp_path, DAMAGES["a sealed segment's data"], monkeypatch):
        if (directory_of(store) / "repair" / "ready").exists():
            ready += 1
            with pytest.raises(DamagedError, match="a repair was cut off"):
                PartitionWriter.open(store, STREAM, 0)
            assert repair(store, NOBODY) == []
            assert contents(store) == contents(whole)
    assert ready > 2


def test_a_reader_goes_on_behind_a_rebuilt_commit_log(whole: Store, tmp_path: Path) -> None:
    """Its records have other lengths than those that the reader has read."""
    store = copy(whole, tmp_path)
    reader = open_partition(store.path, STREAM, 0, check=True)
    flip(segment_of(store, 20).commits, 300)
    assert repair(store, ChainDonor(CHAIN, INFO))
    right = make_chain(INFO, 30)
    for end in (23, 24, 27):
        fill(store, INFO, right, [end])
        assert reader.refresh() == end
        assert reader.gather(range(end)).tobytes() == tokens_of(right, INFO)[:end].tobytes()


def test_a_reader_sees_the_repair_without_being_opened_again(
    whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the block before, and reads it after; views from before stay as they are."""
    for name in ("_LOOK_SECONDS", "_LOOK_SHARE"):
        monkeypatch.setattr(maps, name, 0)  # whether a file is what it was, each time that it is read
    store = copy(whole, tmp_path)
    rng = random.Random(1)
    readers = [open_partition(store.path, STREAM, 0, check=True) for _ in range(2)]
    views = [readers[0].read(number) for number in range(22)]
    damaged = [9, 21]
    for first, number in ((8, 9), (20, 21)):
        path = segment_of(store, first).tokens
        with path.open("r+b") as file:
            at = (number - first) * INFO.block_bytes + rng.randrange(INFO.block_bytes)
            file.seek(at)
            byte = file.read(1)[0]
            changed = path.stat().st_ctime_ns
            while path.stat().st_ctime_ns == changed:  # as long as the kernel's clock has not gone on
                file.seek(at)
                file.write(bytes([byte ^ 1]))  # in the very file that the readers have mapped
                file.flush()
    for reader in readers:
        for number in damaged:
            with pytest.raises(DamagedError):
                reader.read(number)
    repair(store, ChainDonor(CHAIN, INFO))
    right = open_partition(whole.path, STREAM, 0)
    for reader in readers:
        assert reader.refresh() == 22
        assert reader.gather(range(22)).tobytes() == right.gather(range(22)).tobytes()
    assert len(views) == 22
