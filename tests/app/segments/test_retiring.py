"""Retiring old segments, beside writers and readers, killed or not."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.store import chains
from tests.store.chains import (
    STREAM,
    contents,
    cut,
    directory_of,
    fill,
    filled_store,
    make_chain,
    make_info,
    make_store,
)
from tests.store.harm import dies
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.store import EraWriter, PartitionWriter, Start, Store, open_partition
from tokenmill.store.layout import segment_firsts

INFO = make_info()
CHAIN = make_chain(INFO, 30)
TOKENS = chains.tokens_of(CHAIN, INFO)
CHANGING = ("pwrite", "fdatasync", "fsync", "rename", "unlink")
"""Calls that change something on disk."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with five sealed segments of four blocks, and two blocks in an open one."""
    return filled_store(tmp_path, INFO, CHAIN, [22])


def firsts(store: Store) -> list[int]:
    return segment_firsts(path.name for path in directory_of(store).iterdir())


@pytest.mark.parametrize(("below", "first"), [(0, 0), (3, 0), (4, 4), (11, 8), (16, 16), (18, 16), (22, 16), (99, 16)])
def test_whole_segments_go_and_the_newest_stays(store: Store, below: int, first: int) -> None:
    size = sum(path.stat().st_size for path in directory_of(store).iterdir() if path.name[:12] < f"{first:012d}")
    retired = retire(store.path, STREAM, 0, below)
    assert (retired.before, retired.first, retired.segments, retired.freed_bytes) == (0, first, first // 4, size)
    assert firsts(store) == list(range(first, 24, 4))
    reader = open_partition(store.path, STREAM, 0, check=True)
    assert (reader.first_block, reader.blocks) == (first, 22)
    assert reader.gather(range(first, 22)).tobytes() == TOKENS[first:22].tobytes()
    known = [reader.chain_before(block) for block in range(first, 23)]
    assert known == [CHAIN.chains[block - 1] if block else known[0] for block in range(first, 23)]
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert [writer.chain_before(block) for block in range(max(first, 1), 23)] == known[-22 + max(first, 1) - 1 :]
        assert first == 0 or writer.chain_before(first - 1) is None
    fill(store, INFO, CHAIN, [30])
    assert open_partition(store.path, STREAM, 0).blocks == 30


def test_retiring_waits_for_no_writer_and_goes_on_where_it_was(store: Store) -> None:
    with PartitionWriter.open(store, STREAM, 0), EraWriter.open(store, STREAM):
        assert retire(store.path, STREAM, 0, 8).first == 8
    assert retire(store.path, STREAM, 0, 4).segments == 0
    assert retire(store.path, STREAM, 0, 13).first == 12
    assert firsts(store) == [12, 16, 20]
    with pytest.raises(StoreError, match="nothing of partition 7"):
        retire(store.path, STREAM, 7, 4)


def test_a_store_with_retired_segments_grows_as_any_other(store: Store, tmp_path: Path) -> None:
    calm = filled_store(tmp_path / "calm", INFO, CHAIN, [30])
    retire(store.path, STREAM, 0, 8)
    fill(store, INFO, CHAIN, [30])
    kept = {name: data for name, data in contents(calm).items() if name[:12] >= f"{8:012d}"}
    found = contents(store)
    del found["start.json"]
    assert found == kept


@pytest.mark.parametrize("healer", ["call again", "writer", "reader"])
@pytest.mark.slow
@pytest.mark.cases(1)
def test_killed_anywhere_it_is_finished_later(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, healer: str
) -> None:
    raised = 0
    for nth in range(1, 100):
        one = make_store(tmp_path / str(nth), INFO)
        shutil.copytree(directory_of(store), directory_of(one))
        killed = dies(partial(retire, one.path, STREAM, 0, 12), nth, CHANGING, monkeypatch)
        reader = open_partition(one.path, STREAM, 0, check=True)
        assert reader.first_block in {0, 12}
        assert reader.gather(range(reader.first_block, 22)).tobytes() == TOKENS[reader.first_block : 22].tobytes()
        raised += reader.first_block == 12
        if healer == "call again":
            retire(one.path, STREAM, 0, 12)
        elif healer == "writer":
            fill(one, INFO, CHAIN, [22])
        else:
            continue
        if reader.first_block or healer == "call again":
            assert firsts(one) == [12, 16, 20]
        if not killed:
            break
    assert raised > 10


def test_readers_outlive_the_segments_that_they_hold(store: Store) -> None:
    reader, behind = open_partition(store.path, STREAM, 0), open_partition(store.path, STREAM, 0)
    views = [reader.read(number) for number in range(22)]
    fill(store, INFO, CHAIN, [30])
    retire(store.path, STREAM, 0, 99)
    assert [view.tolist() for view in views] == TOKENS[:22].tolist()
    for number in (0, 9, 23):
        with pytest.raises(InputError, match="it begins at block 24"):
            behind.read(number) if number < 22 else behind.gather([behind.refresh() - 8, number])
    assert (reader.refresh(), reader.first_block) == (30, 24)
    assert reader.gather(range(24, 30)).tobytes() == TOKENS[24:30].tobytes()
    with pytest.raises(InputError, match="it begins at block 24"):
        reader.read(23)


def test_a_damaged_segment_can_be_retired(store: Store) -> None:
    """As long as a manifest tells the hash with which the partition begins."""
    for path in chains.segment_of(store, 8).all:
        path.unlink()
    assert retire(store.path, STREAM, 0, 12).first == 12
    chains.segment_of(store, 12).manifest.write_bytes(b"?")
    chains.segment_of(store, 16).manifest.write_bytes(b"?")
    with pytest.raises(DamagedError, match=r"12\.json|16\.json"):
        retire(store.path, STREAM, 0, 16)
    assert firsts(store) == [12, 16, 20]


def test_an_empty_partition_may_begin_later(tmp_path: Path) -> None:
    """Where the token topic holds no more: durably, at a segment's border, and only as long as it is empty."""
    store = make_store(tmp_path, INFO)
    reader = open_partition(store.path, STREAM, 0)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        for start in (6, 7):
            with pytest.raises(InputError, match="cannot begin at block"):
                writer.begin(Start(start, bytes(16)))
        writer.begin(Start(8, CHAIN.chains[7]))
        assert (writer.next_block, writer.chain, reader.refresh(), reader.first_block) == (8, CHAIN.chains[7], 8, 8)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.begun) == (8, False)
        writer.begin(Start(12, CHAIN.chains[11]))
        writer.append(cut(CHAIN, INFO, 12, 13), token_offset=0)
        with pytest.raises(InputError, match="cannot begin"):
            writer.begin(Start(16, CHAIN.chains[15]))
        writer.commit()
    fill(store, INFO, CHAIN, [30])
    assert reader.refresh() == 30
    assert reader.gather(range(12, 30)).tobytes() == TOKENS[12:30].tobytes()
    assert reader.chain_before(12) == CHAIN.chains[11]
