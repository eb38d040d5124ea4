"""Batches of a stream."""

import itertools
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.segments.chains import STREAM, cut, fill, make_chain, make_info, make_store, segment_of, tokens_of
from tokenmill.consumers import Batch, Batches
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.segments import PartitionWriter, Store

INFO = make_info()
BLOCKS = {0: 11, 2: 6, 10: 5}
"""Committed blocks of each partition of the store that tests only read."""
CHAINS = {partition: make_chain(INFO, 30, partition=partition, seed=partition) for partition in BLOCKS}
ROWS = [row for partition, blocks in BLOCKS.items() for row in tokens_of(CHAINS[partition], INFO)[:blocks].tolist()]
"""All of its blocks, partition by partition."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with three partitions."""
    store = make_store(tmp_path_factory.mktemp("store"), INFO)
    for partition, blocks in BLOCKS.items():
        fill(store, INFO, CHAINS[partition], [blocks], partition=partition)
    return store


def rows_of(batches: Iterable[Batch]) -> list[list[int]]:
    """Put x and y together again."""
    return [[*x, y[-1]] for batch in batches for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True)]


def open_batches(store: Store, **options: object) -> Batches:
    """Open batches of 2 samples, unless the options say otherwise."""
    return Batches(store.path, STREAM, **({"batch_size": 2, "sequence_length": 4} | options))  # type: ignore[arg-type]


def test_x_and_y_are_one_token_apart(store: Store) -> None:
    """Both int64 ``[batch, sequence_length]``; a batch unpacks."""
    batch = next(iter(open_batches(store)))
    x, y = batch
    assert (x is batch.x, y is batch.y, x.dtype, y.dtype) == (True, True, torch.int64, torch.int64)
    assert x.tolist() == [row[:-1] for row in ROWS[:2]]
    assert y.tolist() == [row[1:] for row in ROWS[:2]]


def test_every_block_comes_once_partition_by_partition(store: Store) -> None:
    """Each iteration begins at the beginning; what is too little for a batch is left."""
    batches = open_batches(store, batch_size=4)
    assert len(batches) == 22 // 4
    for _ in range(2):
        assert rows_of(batches) == ROWS[:20]


@given(batch_size=st.integers(1, 4), world_size=st.integers(1, 5))
def test_ranks_share_each_step_without_overlap(store: Store, batch_size: int, world_size: int) -> None:
    """Side by side, the ranks' batches are the blocks in order, whatever the sizes."""
    ranks = [
        list(open_batches(store, batch_size=batch_size, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    together = [rows_of([batch]) for step in zip(*ranks, strict=True) for batch in step]
    steps = len(ROWS) // (batch_size * world_size)
    assert list(itertools.chain(*together)) == ROWS[: steps * batch_size * world_size]


def test_a_snapshot_does_not_grow(tmp_path: Path) -> None:
    """What is committed later belongs to a later snapshot; ranks that open later can be given an earlier one."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAINS[0], [7])
    batches = open_batches(store)
    fill(store, INFO, CHAINS[0], [20])
    assert len(batches) == 3
    assert rows_of(batches) == ROWS[:6]
    assert rows_of(open_batches(store, snapshot=batches.snapshot)) == ROWS[:6]
    assert len(open_batches(store)) == 10


def test_a_snapshot_of_what_this_copy_lacks_is_refused(tmp_path: Path, store: Store) -> None:
    """A copy may be behind the one that the snapshot was taken of."""
    behind = make_store(tmp_path, INFO)
    fill(behind, INFO, CHAINS[0], [7])
    with pytest.raises(InputError, match="refresh and wait"):
        list(open_batches(behind, snapshot=open_batches(store).snapshot))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 5}, "have 5 tokens for sequences of 4"),
        ({"batch_size": 0}, "above 0"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1}, "rank"),
        ({"batch_size": 23}, "holds 22 blocks, and a step takes 23"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(store: Store, options: dict[str, object], message: str) -> None:
    """Each with what would."""
    with pytest.raises(InputError, match=message):
        open_batches(store, **options)


def test_a_missing_stream_is_refused(store: Store) -> None:
    """With those that there are."""
    with pytest.raises(StoreError, match=STREAM):
        Batches(store.path, "other", batch_size=1, sequence_length=4)


def test_damage_is_found_when_checking(tmp_path: Path) -> None:
    """And stops the iteration at the block."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAINS[0], [4])
    with segment_of(store).tokens.open("r+b") as file:
        file.write(b"\x00\xff")
    with pytest.raises(DamagedError, match="block 0"):
        next(iter(open_batches(store, check=True)))


def test_damaged_blocks_are_left_out_when_told_to(tmp_path: Path) -> None:
    """Their batches are smaller, one without any is left out, and all others are what they were."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAINS[0], [11])
    for first, at in ((0, 0), (4, 0), (4, INFO.block_bytes)):
        with segment_of(store, first).tokens.open("r+b") as file:
            file.seek(at)
            file.write(b"\x00\xff")
    batches = open_batches(store, on_damage="skip")
    assert [len(batch.x) for batch in batches] == [1, 2, 2, 2]
    assert rows_of(batches) == [*ROWS[1:4], *ROWS[6:10]]
    assert batches.skipped == 3


def test_following_goes_on_with_what_is_committed_later(tmp_path: Path) -> None:
    """From an empty store, over segments that are sealed meanwhile and partitions that appear, until told to stop."""
    store = make_store(tmp_path, INFO)
    seen: list[list[int]] = []

    def feed() -> None:
        for partition, ends in ((0, (1, 3, 8)), (2, (2, 6)), (0, (9, 11)), (10, (5,))):
            fill(store, INFO, CHAINS[partition], ends, partition=partition)

    feeder = threading.Thread(target=feed)
    feeder.start()
    for batch in open_batches(
        store, batch_size=1, follow=True, timeout=60, stop=lambda: len(seen) == len(ROWS), poll_seconds=0.001
    ):
        seen.extend(rows_of([batch]))
    feeder.join()
    assert sorted(seen) == sorted(ROWS)
    assert [row for row in seen if row in ROWS[:11]] == ROWS[:11]


def test_following_ranks_never_share_a_block(store: Store) -> None:
    """Each step's blocks come from one partition; each rank has its slice of them."""
    whole = [*ROWS[:8], *ROWS[11:15], *ROWS[17:21]]
    ranks = [
        rows_of(itertools.islice(open_batches(store, rank=rank, world_size=2, follow=True), len(whole) // 4))
        for rank in range(2)
    ]
    assert all(len(rows) == len(whole) // 2 for rows in ranks)
    assert sorted(itertools.chain(*ranks)) == sorted(whole)


def test_waiting_is_counted_and_ends(tmp_path: Path) -> None:
    """By the timeout, with an error; or by stop, quietly."""
    store = make_store(tmp_path, INFO)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAINS[0], INFO, 0, 3), token_offset=0)
        batches = open_batches(store, follow=True, timeout=0.02, poll_seconds=0.001)
        with pytest.raises(StoreError, match="check that the segment worker runs"):
            next(iter(batches))
    assert batches.waited_seconds > 0
    assert list(open_batches(store, follow=True, stop=lambda: True)) == []
