"""Repairs: whatever was damaged, the partition becomes byte for byte what it was, or says what nothing gives back."""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.commands import Told, invoke
from tests.milled import Milled
from tests.service import equal_files
from tests.store.chains import (
    STREAM,
    contents,
    directory_of,
    fill,
    flip,
    make_chain,
    make_info,
    make_store,
    segment_of,
    tokens_of,
)
from tests.store.harm import ChainDonor, dies
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.inspect.reports import inspect_segments
from tokenmill.app.tools.repair import Donor, Repaired, repair_partition, store_donor
from tokenmill.app.tools.verify import verify
from tokenmill.errors import DamagedError, DifferenceError, LockedError
from tokenmill.store import PartitionWriter, Store, maps, open_partition
from tokenmill.store.layout import SegmentPaths

INFO = make_info()
CHAIN = make_chain(INFO, 22)
NOBODY = ChainDonor(CHAIN, INFO, lacks=range(22))
EVERY = ("bin", "docs", "index", "idx", "json", "commits")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with five sealed segments of four blocks, and two blocks in an open one. Tests only read it."""
    store = make_store(tmp_path_factory.mktemp("whole"), INFO)
    fill(store, INFO, CHAIN, [1, 9, 21, 22])
    return store


def copy(whole: Store, path: Path) -> Store:
    store = make_store(path, INFO)
    shutil.copytree(directory_of(whole), directory_of(store), dirs_exist_ok=True)
    return store


@pytest.fixture
def store(whole: Store, tmp_path: Path) -> Store:
    return copy(whole, tmp_path / "store")


def repair(store: Store, donor: Donor) -> list[Repaired]:
    return list(repair_partition(directory_of(store), INFO, 0, donor))


def harm_file(path: Path, harm: str, place: int) -> None:
    """Flip the bit at a place, cut the file there, or lose it; behind its end, places begin with its first again."""
    data = path.read_bytes()
    if harm == "flip":
        flip(path, place // 8 % len(data), place % 8)
    elif harm == "cut":
        path.write_bytes(data[: place % len(data)])
    else:
        path.unlink()


def test_nothing_is_touched_where_nothing_is_damaged(store: Store) -> None:
    """What was never committed is no damage, and the donor is asked for nothing."""

    def states() -> dict[str, tuple[int, int]]:
        """Return which file every name stands for, and when it was written."""
        found = [path for path in directory_of(store).iterdir() if path.name != "lock"]
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}

    with segment_of(store, 20).tokens.open("ab") as tail:
        tail.write(b"not committed")
    before, donor = states(), ChainDonor(CHAIN, INFO)
    assert repair(store, donor) == []
    assert states() == before
    assert not donor.asked


@pytest.mark.cases(24)
@pytest.mark.parametrize("first", [0, 8, 16, 20])
@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("harm", ["flip", "cut", "lose"])
def test_one_damaged_file_is_mended(whole: Store, store: Store, first: int, suffix: str, harm: str) -> None:
    path = directory_of(store) / f"{first:012d}.{suffix}"
    if not path.exists() or (suffix == "commits" and first < 20):
        return  # an open segment has no index, a sealed one needs no log
    size = path.stat().st_size
    harm_file(path, harm, 8 * (size // 3) if harm == "flip" else 2 * size // 3)
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


def test_only_damaged_blocks_are_asked_for(whole: Store, store: Store) -> None:
    flip(segment_of(store, 8).tokens, INFO.block_bytes + 3)
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
    store = copy(whole, tmp_path_factory.mktemp("store"))
    for name, (harm, place) in harmed.items():
        harm_file(directory_of(store) / name, harm, place)
    assert not [found.lost for found in repair(store, ChainDonor(CHAIN, INFO)) if found.lost]
    fill(store, INFO, CHAIN, [22])
    assert contents(store) == contents(whole)
    assert repair(store, NOBODY) == []


def test_files_are_those_of_the_store(whole: Store) -> None:
    """So that each is harmed."""
    assert sorted(FILES) == sorted(path.name for path in directory_of(whole).iterdir() if path.name != "lock")


def test_what_nothing_gives_back_is_named_and_the_rest_mended(whole: Store, store: Store) -> None:
    """A segment that cannot be whole stays as it is: its other blocks are read as before."""
    for first in (4, 12):
        flip(segment_of(store, first).tokens)
    lose_all(segment_of(store, 8))
    found = repair(store, ChainDonor(CHAIN, INFO, lacks={4, 9, 10}))
    wanted = [(4, [range(4, 5)], 0), (8, [range(9, 11)], 0), (12, [], 4)]
    assert [(f.first, [*f.lost], f.blocks) for f in found] == wanted
    reader, right = open_partition(store.path, STREAM, 0, check=True), open_partition(whole.path, STREAM, 0)
    for block in (5, 12):
        assert reader.read(block).tobytes() == right.read(block).tobytes()
    with pytest.raises(DamagedError, match="block 4, "):
        reader.read(4)


def test_another_store_gives_blocks_back_even_if_damaged_itself(whole: Store, store: Store, tmp_path: Path) -> None:
    info = make_info(segment_blocks=6)
    other = make_store(tmp_path / "other", info)
    fill(other, info, CHAIN, [22])
    lose_all(segment_of(store, 4))
    flip(segment_of(store, 12).documents, 9)
    flip(segment_of(other, 6).tokens, 5 * INFO.block_bytes)  # block 11, which this store has
    found = repair(store, store_donor(other.path, INFO, 0))
    assert [f.given for f in found] == [4, 1]
    assert contents(store) == contents(whole)


@pytest.mark.parametrize("first", [0, 8])
def test_another_history_is_refused(store: Store, first: int) -> None:
    lose_all(segment_of(store, first))
    before = contents(store)
    with pytest.raises(DifferenceError, match="another history"):
        repair(store, ChainDonor(make_chain(INFO, 22, seed=1), INFO))
    assert contents(store) == before


def test_a_foreign_segment_is_put_aside(whole: Store, store: Store, tmp_path: Path) -> None:
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


def test_a_damaged_start_is_told_by_the_oldest_segment(store: Store) -> None:
    retire(store.path, STREAM, 0, 8)
    file = directory_of(store) / "start.json"
    right = file.read_bytes()
    flip(file, 12)
    with pytest.raises(DamagedError, match=r"start\.json: .* run `tokenmill repair"):
        open_partition(store.path, STREAM, 0)
    assert repair(store, NOBODY) == []
    assert file.read_bytes() == right
    assert file.with_name("start.json.broken").exists()
    flip(file, 12)
    flip(segment_of(store, 8).manifest, 12)
    with pytest.raises(DamagedError, match=r"start\.json"):
        repair(store, NOBODY)


def test_a_partition_that_is_being_written_is_refused(store: Store) -> None:
    with PartitionWriter.open(store, STREAM, 0), pytest.raises(LockedError):
        repair(store, NOBODY)


def lose_all(paths: SegmentPaths) -> None:
    for path in paths.all:
        path.unlink()


DAMAGES: dict[str, Callable[[Store], None]] = {
    "a sealed segment's data": lambda store: flip(segment_of(store, 8).tokens),
    "all of it": lambda store: lose_all(segment_of(store, 8)),
    "the open one's table": lambda store: flip(segment_of(store, 20).documents),
    "the open one's log": lambda store: flip(segment_of(store, 20).commits, 37),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_killed_repair_goes_on(whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """At any call that changes something; once a rebuilt segment is ready, no donor is needed any more."""
    names, ready = ("pwrite", "fdatasync", "fsync", "rename", "link", "unlink", "mkdir"), 0
    for calls in count(1):
        store = copy(whole, tmp_path / str(calls))
        DAMAGES[damage](store)
        if not dies(partial(repair, store, ChainDonor(CHAIN, INFO)), calls, names, monkeypatch):
            break
        reader = open_partition(store.path, STREAM, 0, on_damage="skip")
        assert reader.gather([0, 1, 16]).shape == (3, 5)
        if (directory_of(store) / "repair" / "ready").exists():
            ready += 1
            with pytest.raises(DamagedError, match="a repair was cut off"):
                PartitionWriter.open(store, STREAM, 0)
            assert repair(store, NOBODY) == []
        else:
            repair(store, ChainDonor(CHAIN, INFO))
        assert contents(store) == contents(whole)
        assert not (directory_of(store) / "repair").exists()
        with PartitionWriter.open(store, STREAM, 0) as writer:
            assert writer.next_block == 22
    assert calls > 20
    assert ready > 2


def test_a_reader_goes_on_behind_a_rebuilt_commit_log(store: Store) -> None:
    """Its records have other lengths than those that the reader has read."""
    reader = open_partition(store.path, STREAM, 0, check=True)
    flip(segment_of(store, 20).commits, 37)
    assert repair(store, ChainDonor(CHAIN, INFO))
    right = make_chain(INFO, 30)
    for end in (23, 24, 27):
        fill(store, INFO, right, [end])
        assert reader.refresh() == end
        assert reader.gather(range(end)).tobytes() == tokens_of(right, INFO)[:end].tobytes()


def test_an_open_reader_sees_the_repair(whole: Store, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_SECONDS", "_LOOK_SHARE"):
        monkeypatch.setattr(maps, name, 0)  # whether a file is what it was, each time that it is read
    readers = [open_partition(store.path, STREAM, 0, check=True) for _ in range(2)]
    views = [readers[0].read(number) for number in range(22)]  # which stay mapped
    rng = random.Random(1)
    for first, number in ((8, 9), (20, 21)):
        path = segment_of(store, first).tokens
        at, changed = (number - first) * INFO.block_bytes + rng.randrange(INFO.block_bytes), path.stat().st_ctime_ns
        damaged = bytes([path.read_bytes()[at] ^ 1])
        while path.stat().st_ctime_ns == changed:  # as long as the kernel's clock has not gone on
            with path.open("r+b") as file:  # the very file that the readers have mapped
                file.seek(at)
                file.write(damaged)
        for reader in readers:
            with pytest.raises(DamagedError):
                reader.read(number)
    repair(store, ChainDonor(CHAIN, INFO))
    right = open_partition(whole.path, STREAM, 0)
    for reader in readers:
        assert reader.refresh() == 22
        assert reader.gather(range(22)).tobytes() == right.gather(range(22)).tobytes()
    assert len(views) == 22


Run = Callable[..., Told]


@pytest.fixture
def copied(milled: Milled, tmp_path: Path) -> Path:
    path = tmp_path / "store"
    shutil.copytree(milled.settings.store, path)
    Store.adopt(path)
    return path


@pytest.fixture
def run(milled: Milled, copied: Path) -> Run:
    def run(*arguments: str, brokers: str = milled.settings.bootstrap_servers) -> Told:
        place = [] if "--store" in arguments else ["--store", copied]
        return invoke(*arguments, "--bootstrap-servers", brokers, *place)

    return run


def test_what_is_damaged_is_rebuilt_from_the_token_topic(milled: Milled, copied: Path, run: Run) -> None:
    stream = milled.train
    flip(copied / stream / "0" / "000000000016.bin", 64 * 3 + 5)
    for path in (copied / stream / "1").glob("000000000000.*"):
        path.unlink()
    flip(copied / stream / "stream.json", 40)
    assert run("repair", stream, "--check").code == 8
    mended = run("repair", stream)
    kept = "the damaged files are kept: 000000000016.bin.broken"
    assert mended.code == 0
    assert mended.out.splitlines() == [
        f"{copied / stream / 'stream.json'}: written again",
        f"{stream}/0: segment 000000000016 is whole: 16 blocks, 1 block of them given back; {kept}",
        f"{stream}/1: segment 000000000000 is whole: 16 blocks, 16 blocks of them given back",
    ]
    assert "000000000016.bin: block 19, at byte 192, is not what was committed" in mended.err
    assert equal_files(copied, stream) == equal_files(milled.settings.store, stream)
    whole = "".join(f"{stream}/{partition}: nothing is damaged\n" for partition in (0, 1))
    assert run("repair", stream, "--check") == (0, whole, "")
    assert verify(milled.settings, [stream], store=copied).ok


def test_another_store_gives_back_without_a_broker(milled: Milled, copied: Path, run: Run) -> None:
    stream, other = milled.train, copied.parent / "other"
    shutil.copytree(copied, other)
    flip(copied / stream / "0" / "000000000000.bin", 64 * 7)
    flip(copied / stream / "0" / "000000000016.docs")
    flip(other / stream / "0" / "000000000016.bin")
    found = run("repair", stream, "0", "--from", str(other), "--json", brokers="127.0.0.1:1")
    assert found.code == 10
    assert "nothing gives back block 16 of " in found.err
    segments = json.loads(found.out)["partitions"][0]["segments"]
    wanted = [(0, 16, 1, []), (16, 0, 0, [[16, 17]])]
    assert [(s["first"], s["blocks"], s["given"], s["lost"]) for s in segments] == wanted
    assert run("repair", stream, "0").code == 0
    assert equal_files(copied, stream) == equal_files(milled.settings.store, stream)


def test_what_cannot_be_repaired_is_refused(milled: Milled, copied: Path, run: Run) -> None:
    stream = milled.train
    with PartitionWriter.open(Store.open(copied), stream, 0):
        locked = run("repair", stream)
    assert (locked.code, "is being written by process" in locked.err) == (7, True)
    assert run("repair", stream, "9").code == 12
    assert run("repair", "nothing").code == 4
    assert run("repair", "nothing", "--check").code == 6
    foreign = copied.parent / "foreign"
    shutil.copytree(copied / milled.settings.streams()[1].name, foreign / stream)
    assert run("repair", stream, "--store", str(foreign), "--check").code == 6


def test_old_segments_are_retired_by_command(milled: Milled, copied: Path, run: Run) -> None:
    stream = milled.train
    blocks = [len(milled.chains[stream, partition]) for partition in (0, 1)]
    assert run("retire", stream).code == 12
    first = run("retire", stream, "0", "--below", "20")
    assert first.code == 0
    assert first.out.startswith(f"{stream}/0: begins with block 16 now (before: 0); 1 segment, ")
    report = json.loads(run("inspect", "stream", stream, "--json").out)
    assert [chain["store_first"] for chain in report["chains"]] == [16, 0]
    assert f"16 to {blocks[0] - 1} " in run("inspect", "stream", stream).out
    again = run("retire", stream, "0", "--below", "20")
    assert again.out == f"{stream}/0: begins with block 16 as before, nothing to free\n"
    kept = json.loads(run("retire", stream, "--keep", str(blocks[1] - 16), "--json").out)
    assert kept["1"]["first"] == 16

    reader = open_partition(copied, stream, 1, check=True)
    assert reader.read(16).tobytes() == milled.chains[stream, 1][16].tokens
    result = verify(milled.settings, [stream], store=copied)
    assert result.ok
    assert [chain.store_blocks for chain in result.chains] == [(kept["0"]["first"], blocks[0]), (16, blocks[1])]
    assert f"the store's {stream} partition 1 starts with block 16" in result.notes
    assert run("inspect", "block", stream, "1", "3").code == 0  # the topic has it
    assert inspect_segments(copied / stream / "1")[0]["chain_before"] == milled.chains[stream, 1][15].chain.hex()
    flip(copied / stream / "1" / "000000000016.bin", 5)
    assert run("repair", stream).code == 0
    assert verify(milled.settings, [stream], store=copied).ok


def test_a_copy_is_adopted_by_command(milled: Milled, copied: Path, run: Run) -> None:
    copy = copied.parent / "copy"
    shutil.copytree(copied, copy)
    adopted = run("adopt", "--store", str(copy))
    assert (adopted.code, adopted.out.strip()) == (0, Store.open(copy).id)
    assert Store.open(copy).id != Store.open(copied).id
    assert json.loads(run("adopt", "--store", str(copy), "--json").out)["store"] == str(copy)
    assert run("adopt", "--store", str(copied.parent)).code == 6
