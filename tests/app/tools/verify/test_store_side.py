"""The store's side: every file of a segment is looked at, also where all blocks are equal."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.chains import STREAM, fill, flip, make_chain, make_info, make_store, segment_of
from tokenmill.app.tools.verify.sides import StoreSide
from tokenmill.app.tools.verify.verify_bounds import StoreMark
from tokenmill.app.tools.verify.verify_result import BlockRun, ChainResult, VerifyDifference
from tokenmill.store import Store
from tokenmill.store.layout import SegmentPaths

INFO = make_info()
BLOCKS = 10
"""Two sealed segments of four blocks, and half of an open one."""
CHAIN = make_chain(INFO, BLOCKS + 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with all of the chain."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAIN, [BLOCKS])
    return store


def part(first: int, end: int) -> BlockRun:
    """Return some of the blocks as they must be."""
    size = INFO.block_bytes
    tokens = memoryview(CHAIN.tokens)[first * size : end * size]
    return BlockRun(first, tokens, CHAIN.entries[first:end], CHAIN.chains[first:end])


WHOLE = part(0, BLOCKS)


def compared(
    store: Store, *runs: BlockRun, mark: StoreMark | None = None, since: int = 0, finish: int | None = None
) -> tuple[ChainResult, StoreSide]:
    """Hold a store against runs of blocks; return what was found."""
    held = mark or StoreMark(0, BLOCKS)
    result = ChainResult(STREAM, 0, "raw-text", (0, 1), (0, 1), store_blocks=(held.first, held.end))
    side = StoreSide(store.path, INFO, result, held, since=since)
    for run in runs:
        side.compare(run)
    if finish is not None:
        side.finish(finish, "the source")
    return result, side


def one(result: ChainResult) -> VerifyDifference:
    """Return the only difference."""
    (found,) = result.differences
    return found


def change_manifest(paths: SegmentPaths, name: str) -> None:
    """Let a manifest say another number, in itself as whole as before."""
    values = json.loads(paths.manifest.read_bytes())
    text = paths.manifest.read_text().replace(f'"{name}":{values[name]}', f'"{name}":{values[name] ^ 1}')
    assert text != paths.manifest.read_text()
    paths.manifest.write_text(text)


def test_a_store_that_is_right_is_equal(store: Store) -> None:
    """However the blocks come; the open segment's as well."""
    for runs in ([WHOLE], [part(n, n + 1) for n in range(BLOCKS)], [part(0, 3), part(3, 9), part(9, 10)]):
        result, side = compared(store, *runs, finish=BLOCKS)
        assert (result.differences, result.store_equal, side.next_block, side.broken) == ([], BLOCKS, BLOCKS, False)


@pytest.mark.parametrize("runs", [[WHOLE], [part(n, n + 1) for n in range(BLOCKS)]], ids=["at once", "one by one"])
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda paths: paths.megatron.unlink(), r"\.idx: it is missing, or not the index of its tokens"),
        (lambda paths: flip(paths.megatron, 20), r"\.idx: it is missing, or not the index of its tokens"),
        (lambda paths: change_manifest(paths, "bin_crc32"), r"\.json: its checksums are not those of the files"),
        (lambda paths: change_manifest(paths, "docs_crc32"), r"\.json: its checksums are not those of the files"),
        (lambda paths: paths.documents.write_bytes(paths.documents.read_bytes() + b"x"), "the manifest says"),
    ],
    ids=["index gone", "index changed", "tokens' checksum", "documents' checksum", "longer file"],
)
def test_what_stands_beside_equal_blocks_is_looked_at(
    store: Store, runs: list[BlockRun], damage: Callable[[SegmentPaths], None], text: str
) -> None:
    """A sealed segment's Megatron index and manifest: other programs read these."""
    damage(segment_of(store, 4))
    result, side = compared(store, *runs)
    found = one(result)
    assert (found.side, found.kind, found.block) == ("store", "damaged", 7)
    assert re.search(text, found.text)
    assert (result.store_equal, side.broken) == (7, True)


def test_a_segment_is_checked_whole_where_a_verification_begins_inside_it(store: Store) -> None:
    """What was verified before belongs to the checksums of its files: right, it fits; changed since, it does not."""
    result, _ = compared(store, part(6, BLOCKS), since=6)
    assert (result.differences, result.store_equal) == ([], BLOCKS - 6)
    assert [compared(store, since=since)[1].next_block for since in (0, 6, 99)] == [0, 6, BLOCKS]
    for name in ("tokens", "documents"):
        flip(getattr(segment_of(store, 4), name))
        result, _ = compared(store, part(6, BLOCKS), since=6)
        assert (one(result).kind, one(result).block) == ("damaged", 7)
        flip(getattr(segment_of(store, 4), name))


def test_the_first_damaged_block_is_named_and_those_before_it_are_equal(store: Store) -> None:
    """In the middle of a run."""
    flip(segment_of(store, 4).tokens, INFO.block_bytes * 2)
    result, side = compared(store, WHOLE)
    assert (one(result).kind, one(result).block, result.store_equal) == ("damaged", 6, 6)
    assert side.broken


def test_a_row_that_is_wrong_is_damage(store: Store) -> None:
    """Of an open segment it stands in the commit log, of a sealed one in the index."""
    flip(segment_of(store, 0).index, 3)
    result, _ = compared(store, WHOLE)
    assert (one(result).kind, one(result).block) == ("damaged", 0)


def test_another_chain_is_different_and_no_damage(store: Store) -> None:
    """What was stored is whole in itself; the source makes other blocks."""
    other = make_chain(INFO, BLOCKS, seed=7)
    result, _ = compared(store, BlockRun(0, other.tokens, other.entries, other.chains))
    assert one(result).kind in {"different", "repeated", "skipped"}
    assert one(result).block == 0


def test_blocks_that_were_there_at_the_mark_must_still_be_there(store: Store) -> None:
    """A segment that holds fewer than it did is named."""
    result, _ = compared(store, part(0, BLOCKS + 1), mark=StoreMark(0, BLOCKS + 1))
    assert "2 blocks are committed, 3 were before" in one(result).text
    assert one(result).block == 8


def test_only_blocks_of_the_mark_are_asked_for_and_more_than_the_source_makes_are_extra(store: Store) -> None:
    """What came to the store meanwhile, or was retired before, is no difference."""
    result, _ = compared(store, WHOLE, mark=StoreMark(4, 9), finish=BLOCKS)
    assert (result.differences, result.store_equal) == ([], 5)
    result, side = compared(store, part(0, 8), finish=8)
    assert (one(result).kind, one(result).block, side.broken) == ("extra", 8, True)
    result, _ = compared(store, mark=StoreMark(4, 4), finish=0)
    assert result.differences == []  # all was retired, and the source is gone


def test_nothing_is_compared_behind_the_first_difference(store: Store) -> None:
    """One difference of a side is told, not thousands."""
    flip(segment_of(store, 0).tokens)
    flip(segment_of(store, 4).tokens)
    result, _ = compared(store, *(part(n, n + 1) for n in range(BLOCKS)), finish=BLOCKS - 1)
    assert one(result).block == 0
    assert result.store_equal == 0
