"""Reading a partition."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import (
    STREAM,
    cut,
    directory_of,
    fill,
    filled_store,
    flip,
    make_chain,
    make_info,
    make_store,
    segment_of,
    tokens_of,
)
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import DamagedError, InputError
from tokenmill.reading import Blocks
from tokenmill.store import DocumentPiece, PartitionReader, PartitionWriter, Store, maps, open_partition
from tokenmill.store.sealing import BLOCK_ROW
from tokenmill.wire.pieces import PADDING, Piece, encode_entry

INFO = make_info()
CHAIN = make_chain(INFO, 22)
TOKENS = tokens_of(CHAIN, INFO)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Five sealed segments of four blocks, and two blocks in an open one. Tests only read it."""
    return filled_store(tmp_path_factory.mktemp("store"), INFO, CHAIN, [22])


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """Return another one of the same, which the test changes."""
    return filled_store(tmp_path, INFO, CHAIN, [22])


def test_every_block_is_read_from_its_file(store: Store) -> None:
    reader = open_partition(store.path, STREAM, 0)
    assert (reader.first_block, reader.blocks, reader.block_tokens, reader.dtype.str) == (0, 22, 5, "<u2")
    for number in range(22):
        block = reader.read(number)
        assert block.tolist() == TOKENS[number].tolist()
        assert not block.flags.writeable
        assert not block.flags.owndata
    assert [reader.chain_before(block) for block in range(1, 24)] == [*CHAIN.chains, None]


@given(numbers=st.lists(st.integers(0, 21), max_size=40))
def test_blocks_are_gathered_in_the_order_asked_for(store: Store, numbers: list[int]) -> None:
    reader = open_partition(store.path, STREAM, 0, check=True)
    assert reader.gather(numbers).tolist() == TOKENS[numbers].tolist()
    assert reader.gather(np.array(numbers, np.uint32)).tolist() == TOKENS[numbers].tolist()
    seen: list[int] = []
    for where, tokens, rows in reader.parts(np.array(numbers, np.int64)):
        assert tokens[rows].tolist() == TOKENS[numbers][where].tolist()
        seen += where.tolist()
    assert sorted(seen) == list(range(len(numbers)))  # each once


@given(bounds=st.tuples(st.integers(0, 22), st.integers(0, 22)).map(sorted))
def test_blocks_that_follow_each_other_are_views(store: Store, bounds: list[int]) -> None:
    found = [tokens for tokens, _ in open_partition(store.path, STREAM, 0).between(*bounds)]
    assert [row for tokens in found for row in tokens.tolist()] == TOKENS[slice(*bounds)].tolist()
    assert len(found) == len({number // INFO.segment_blocks for number in range(*bounds)})
    assert not any(tokens.flags.writeable or tokens.flags.owndata for tokens in found)


@pytest.mark.parametrize("numbers", [[-1], [22], [3, 22, 4], [10**12]])
def test_blocks_that_are_not_there_are_refused(store: Store, numbers: list[int]) -> None:
    reader = open_partition(store.path, STREAM, 0)
    with pytest.raises(InputError, match="blocks 0 to 21 are"):
        reader.gather(numbers)
    if len(numbers) == 1:
        with pytest.raises(InputError, match="blocks 0 to 21 are"):
            reader.read(numbers[0])
        with pytest.raises(InputError, match="blocks 0 to 21 are"):
            reader.documents(numbers[0])


def test_documents_are_where_they_were_stored(tmp_path: Path) -> None:
    pieces = [
        Piece(0, 7, 12, b'{"id":"a"}'),
        Piece(2, 9, 0, b'{"fields":{"label":"\xc3\xa9"},"id":5}'),
        Piece(3, 10, 0, b""),
        Piece(4, 11, PADDING, b""),
    ]
    filled_store(tmp_path, INFO, Blocks(0, bytes(10), [encode_entry(pieces)], [bytes(16)]), [1])
    assert open_partition(tmp_path, STREAM, 0, check=True).documents(0) == [
        DocumentPiece(0, 2, 7, 12, "a", {}),
        DocumentPiece(2, 3, 9, 0, 5, {"label": "é"}),
        DocumentPiece(3, 4, 10, 0, None, {}),
        DocumentPiece(4, 5, 11, -1, None, {}),
    ]


@pytest.mark.parametrize("spoilt", [(), (5,), (4, 5, 6, 7)])
def test_a_single_hash_is_asked_for_without_the_whole_index(own: Store, spoilt: tuple[int, ...]) -> None:
    """The one that is wanted is right, whatever stands beside it; any other is only given by a sound index."""
    index = directory_of(own) / f"{4:012d}.index"
    for block in spoilt:
        flip(index, (block - 4) * BLOCK_ROW.itemsize + 20)
    if len(spoilt) == 4:
        index.unlink()

    reader = open_partition(own.path, STREAM, 0)
    for block, chain in enumerate(CHAIN.chains):
        if block in spoilt:
            with pytest.raises(DamagedError, match=index.name):
                reader.has_chain_before(block + 1, chain)
        else:
            assert reader.has_chain_before(block + 1, chain)
    if not spoilt:
        assert not any(reader.has_chain_before(block, bytes(16)) for block in range(25))


def test_a_retired_hash_is_not_damage(own: Store) -> None:
    reader = open_partition(own.path, STREAM, 0)
    retire(own.path, STREAM, 0, 12)
    with pytest.raises(InputError, match="segments were retired"):
        reader.has_chain_before(6, CHAIN.chains[5])


def test_a_partition_that_does_not_exist_yet_has_no_blocks(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    reader = open_partition(tmp_path, STREAM, 0)
    assert reader.refresh() == 0
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert reader.refresh() == 0
        writer.append(cut(CHAIN, INFO, 0, 1), token_offset=0)
        writer.commit()
    assert reader.refresh() == 1
    assert reader.read(0).tolist() == TOKENS[0].tolist()


def test_a_segment_is_known_when_it_is_mapped_again(own: Store) -> None:
    reader = PartitionReader(directory_of(own), INFO, 0, open_segments=1)
    assert reader.gather(range(22)).tolist() == TOKENS.tolist()
    for first in range(0, 20, 4):
        segment_of(own, first).manifest.unlink()
    for number in (0, 9, 1, 21, 5):
        assert reader.read(number).tolist() == TOKENS[number].tolist()
    assert len(reader._cache) == 1


def test_views_stay_valid_while_the_store_grows_and_seals(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    reader = PartitionReader(directory_of(store), INFO, 0, open_segments=1)
    views = []
    for end in range(1, 23):
        fill(store, INFO, CHAIN, [end])
        assert reader.refresh() == end
        views.append(reader.read(end - 1))
        assert reader.gather(range(end)).tolist() == TOKENS[:end].tolist()
    assert [view.tolist() for view in views] == TOKENS.tolist()


def test_sealed_segments_that_are_copied_in_are_seen(tmp_path: Path, store: Store) -> None:
    """A reader follows a store that is filled by copying, without commit logs."""
    copy = make_store(tmp_path, INFO)
    reader = open_partition(tmp_path, STREAM, 0)
    directory_of(copy).mkdir()
    for first in range(0, 20, 4):
        for suffix in ("bin", "docs", "index", "idx", "json"):
            name = f"{first:012d}.{suffix}"
            (directory_of(copy) / name).write_bytes((directory_of(store) / name).read_bytes())
        assert reader.refresh() == first + 4
    assert reader.gather(range(20)).tolist() == TOKENS[:20].tolist()


def test_a_checking_reader_refuses_only_the_damaged_block(own: Store) -> None:
    for first, block in ((4, 6), (20, 21)):
        flip(segment_of(own, first).tokens, (block - first) * INFO.block_bytes)
        reader = open_partition(own.path, STREAM, 0, check=True)
        message = rf"{first:012d}\.bin: block {block}, at byte {10 * (block - first)}, is not what was committed"
        with pytest.raises(DamagedError, match=message):
            reader.read(block)
        with pytest.raises(DamagedError, match=message):
            reader.gather([0, block])
        assert reader.read(block - 1).tolist() == TOKENS[block - 1].tolist()
        assert open_partition(own.path, STREAM, 0, check=False).read(block).tolist() != TOKENS[block].tolist()


def test_damage_is_refused_beside_what_a_writer_left_uncommitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is longer than when it was mapped, and stays so where its writer was killed."""
    for name in ("_LOOK_SECONDS", "_LOOK_SHARE", "_GROWN_SECONDS"):
        monkeypatch.setattr(maps, name, 0)
    store = filled_store(tmp_path / "store", INFO, CHAIN, [2])
    reader = open_partition(store.path, STREAM, 0, check=True)
    reader.read(0)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 2, 3), token_offset=3)  # which nothing commits
    flip(segment_of(store).tokens, 0)
    with pytest.raises(DamagedError, match=r"block 0, at byte 0, is not what was committed"):
        reader.read(0)
    assert reader.read(1).tolist() == TOKENS[1].tolist()


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [4])
    flip(segment_of(store).documents, len(CHAIN.entries[0]))
    for check in (True, False):
        reader = open_partition(tmp_path, STREAM, 0, check=check)
        with pytest.raises(DamagedError, match=r"\.docs: the entry of block 1"):
            reader.documents(1)
        assert reader.read(1).tolist() == TOKENS[1].tolist()


@pytest.mark.parametrize("suffix", ["bin", "docs", "index", "json"])
def test_a_sealed_segment_that_is_not_whole_is_refused_alone(own: Store, suffix: str) -> None:
    file = directory_of(own) / f"{4:012d}.{suffix}"
    os.truncate(file, file.stat().st_size - 1)
    reader = open_partition(own.path, STREAM, 0)
    for _ in range(2):
        with pytest.raises(DamagedError, match=file.name):
            (reader.read if suffix == "bin" else reader.documents)(7)
        assert reader.read(3).tolist() == TOKENS[3].tolist()
        assert reader.read(8).tolist() == TOKENS[8].tolist()
        if suffix != "json":  # without a manifest the commit log counts
            file.unlink(missing_ok=True)


def test_a_damaged_commit_log_is_loud_and_not_the_end_of_the_store(tmp_path: Path) -> None:
    """A reader that took it for the end would stand still in silence."""
    store = make_store(tmp_path, INFO)
    reader = open_partition(tmp_path, STREAM, 0)
    fill(store, INFO, CHAIN, [1, 2, 3])
    flip(segment_of(store).commits, 100)
    with pytest.raises(DamagedError, match=r"\.commits: .*damaged"):
        reader.refresh()


def test_half_a_record_is_still_to_come(tmp_path: Path) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [1, 2, 3])
    log = segment_of(store).commits
    data = log.read_bytes()
    log.write_bytes(data[:-40])
    reader = open_partition(tmp_path, STREAM, 0)
    assert reader.blocks == 2
    log.write_bytes(data)
    assert reader.refresh() == 3


def test_a_segment_of_another_stream_is_refused(tmp_path: Path) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [4])
    directory_of(store).rename(directory_of(store, 1))
    with pytest.raises(DamagedError, match="belongs elsewhere"):
        open_partition(tmp_path, STREAM, 1).read(0)


def test_opening_reads_nothing_but_the_last_segment(own: Store) -> None:
    """So it takes as long for many segments as for a few: broken manifests in between go unnoticed."""
    for first in range(0, 20, 4):
        segment_of(own, first).manifest.write_bytes(b"broken")
    assert open_partition(own.path, STREAM, 0).blocks == 22


def test_few_files_are_kept_open(store: Store) -> None:
    reader = PartitionReader(directory_of(store), INFO, 0, open_segments=2)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    for number in range(22):
        reader.read(number)
        reader.documents(number)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 3  # noqa: PTH208 - a count


def test_who_skips_damaged_blocks_reads_all_others(own: Store, caplog: pytest.LogCaptureFixture) -> None:
    flip(segment_of(own, 4).tokens, 2 * INFO.block_bytes)
    segment_of(own, 12).tokens.unlink()
    flip(segment_of(own, 20).tokens, INFO.block_bytes)
    lost = [6, 12, 13, 14, 15, 21]
    rest = [number for number in range(22) if number not in lost]
    reader = open_partition(own.path, STREAM, 0, on_damage="skip")
    for _ in range(2):
        assert reader.gather(range(22)).tolist() == TOKENS[rest].tolist()
    assert sorted(reader.skipped) == lost
    assert "block 6, at byte 20, " in reader.skipped[6]
    logged = [record.args[:2] for record in caplog.records if isinstance(record.args, tuple)]
    assert logged == [(1, 6), (4, 12), (1, 21)]
    with pytest.raises(DamagedError, match="block 6"):
        reader.read(6)
    flip(segment_of(own, 4).tokens, 2 * INFO.block_bytes)  # mended
    assert reader.gather([5, 6]).tolist() == TOKENS[[5, 6]].tolist()
    assert sorted(reader.skipped) == lost[1:]


@pytest.mark.parametrize("suffix", ["commits", "json"])
def test_who_skips_damage_sees_what_is_before_it(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged end of the store hides what is behind it: that is said, and seen again when it is mended."""
    store = filled_store(tmp_path, INFO, CHAIN, [4, 5, 6, 7] if suffix == "commits" else [8])
    path = directory_of(store) / f"{4:012d}.{suffix}"
    at = 100 if suffix == "commits" else 0
    flip(path, at)
    reader = open_partition(tmp_path, STREAM, 0, on_damage="skip")
    assert (reader.blocks, reader.refresh()) == ((5, 5) if suffix == "commits" else (4, 4))
    assert path.name in str(reader.hidden)
    assert len(caplog.records) == 1
    assert reader.gather(range(reader.blocks)).tolist() == TOKENS[: reader.blocks].tolist()
    flip(path, at)
    fresh = open_partition(tmp_path, STREAM, 0, on_damage="skip")
    assert (fresh.hidden, fresh.blocks) == (None, 7 if suffix == "commits" else 8)
    assert (reader.refresh(), reader.hidden) == (fresh.blocks, None)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without large pages")
@pytest.mark.parametrize("whole", [False, True])
def test_whole_segments_are_mapped_in_large_pages(own: Store, whole: bool) -> None:  # noqa: FBT001
    """The kernel is asked for them (``hg`` in proc(5)'s smaps) where all of a segment is going to be read."""
    reader = PartitionReader(directory_of(own), INFO, 0, whole=whole)
    segment, _ = reader.locate(0)
    assert segment.tokens.tolist() == TOKENS[: len(segment.tokens)].tolist()
    maps = Path("/proc/self/smaps").read_text().split(str(segment.paths.tokens))[1]
    flags = next(line for line in maps.splitlines() if line.startswith("VmFlags:")).split()
    assert ("hg" in flags) == whole
