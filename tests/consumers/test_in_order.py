"""Segments of chunks in order: a row of consecutive steps is consecutive text."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.consumers.packed import given_documents, pack, packed_info, packed_store
from tests.consumers.scenes import era_store, open_batches, rows_of
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, StepDataset
from tokenmill.errors import InputError
from tokenmill.samples.sequence import Position, SegmentOrder
from tokenmill.samples.tracing import Tracer
from tokenmill.samples.trainable import first_needed
from tokenmill.store import read_stream

LENGTHS = [40, 27, 9, 13, 90, 26, 14, 70, 13, 55]
CHUNK, SEGMENT = 12, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 26 chunks of three segments in each of two partitions and three eras."""
    info = packed_info("chunks", block_tokens=CHUNK + 1)
    blocks = {n: pack(given_documents(LENGTHS, first=n), "chunks", CHUNK + 1) for n in (0, 1)}
    assert len(blocks[0]) == 26
    return packed_store(tmp_path_factory.mktemp("store"), info, blocks, [{0: 7}, {0: 11, 1: 20}, {0: 26, 1: 26}]).path


def open_in_order(path: Path, **options: Any) -> Batches:
    given_options = {"batch_size": 3, "sequence_length": SEGMENT, "seed": 1, "in_order": True}
    return Batches(path, STREAM, **(given_options | options))


def columns(batches: Any) -> list[tuple[bool, list[list[int]]]]:
    """Return whether each batch begins chunks, and its rows, the last of y included."""
    return [(batch.begins, rows_of([batch])) for batch in batches]


def chunks_of(path: Path, *, shuffle: bool = True, passes: int = 1) -> list[list[int]]:
    """Return the chunks in the order of a run whose samples are whole chunks."""
    whole = Batches(path, STREAM, batch_size=1, sequence_length=CHUNK, seed=1, shuffle=shuffle, passes=passes)
    return [[*batch.x[0].tolist(), int(batch.y[0, -1])] for batch in whole]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [1, 3, 5, 26])
def test_rows_of_consecutive_steps_are_consecutive_text(path: Path, size: int, *, shuffle: bool) -> None:
    found = columns(open_in_order(path, batch_size=size, shuffle=shuffle, passes=2))
    chunks = chunks_of(path, shuffle=shuffle, passes=2)
    assert len(chunks) == 104
    assert len(found) == len(open_in_order(path, batch_size=size, passes=2)) == 104 // size * 3
    for at, (begins, rows) in enumerate(found):
        group, view = divmod(at, 3)
        assert begins is (view == 0)
        side_by_side = chunks[group * size : (group + 1) * size]
        assert rows == [chunk[view * SEGMENT : (view + 1) * SEGMENT + 1] for chunk in side_by_side]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([(1, 6), (2, 3), (3, 2), (6, 1)]), st.integers(0, 13)), max_size=4))
@pytest.mark.needs("minutes")
def test_runs_resume_amid_chunks(path: Path, legs: list[tuple[tuple[int, int], int]]) -> None:
    whole = columns(open_in_order(path, batch_size=6))
    seen: list[tuple[bool, list[list[int]]]] = []
    state = open_in_order(path, batch_size=6).state_dict()
    for (world_size, batch_size), steps in legs:
        ranks = [
            open_in_order(path, batch_size=batch_size, world_size=world_size, rank=rank) for rank in range(world_size)
        ]
        for rank in ranks:
            rank.load_state_dict(state)
        taken = [columns(islice(rank, steps)) for rank in ranks]
        seen += [(parts[0][0], [row for _, rows in parts for row in rows]) for parts in zip(*taken, strict=True)]
        assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
        state = json.loads(json.dumps(ranks[0].state_dict()))
    assert seen == whole[: len(seen)]


def test_another_size_begins_with_new_chunks(path: Path) -> None:
    batches = open_in_order(path)
    list(islice(batches, 6))
    other = open_in_order(path, batch_size=2)
    other.load_state_dict(batches.state_dict())
    chunks = chunks_of(path)
    assert columns(islice(other, 3)) == [
        (view == 0, [chunk[view * SEGMENT : (view + 1) * SEGMENT + 1] for chunk in chunks[6:8]]) for view in range(3)
    ]
    assert (other.step, len(other)) == (9, 6 + 46 // 2 * 3)
    again = open_in_order(path, batch_size=4)
    again.load_state_dict(json.loads(json.dumps(other.state_dict())))
    assert columns(islice(again, 1)) == [(True, [chunk[: SEGMENT + 1] for chunk in chunks[8:12]])]
    with pytest.raises(InputError, match=r"amid chunks that are read 4 side by side: give as many"):
        open_in_order(path).load_state_dict(again.state_dict())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_workers_take_turns(path: Path) -> None:
    whole = columns(open_in_order(path))
    dataset = StepDataset(path, STREAM, batch_size=3, sequence_length=SEGMENT, seed=1, in_order=True)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert columns(islice(loader, 4)) + columns(loader) == whole


def test_other_packings_and_sequences_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="packed as 'concat', whose blocks are no chunks"):
        open_batches(era_store(tmp_path), in_order=True)
    plain = Batches(path, STREAM, batch_size=3, sequence_length=SEGMENT, seed=1)
    assert "in_order" not in plain.state_dict()
    with pytest.raises(InputError, match="in_order True"):
        plain.load_state_dict(open_in_order(path).state_dict())
    with pytest.raises(InputError, match="in_order False"):
        open_in_order(path).load_state_dict(plain.state_dict())
    with pytest.raises(InputError, match="a step takes 60 samples"):
        list(open_in_order(path, batch_size=60))


def test_tools_follow_a_run_in_order(path: Path) -> None:
    batches = open_in_order(path)
    taken = list(islice(batches, 8))
    position = Position.read(batches.state_dict())
    tracer = Tracer(path, position)
    for batch in taken:
        traced = list(tracer.step(batch.step))
        assert [(one.partition, one.block, one.view) for one in traced] == list(
            zip(*(column.tolist() for column in batch.samples), strict=True)
        )
        assert all(one.use.step == batch.step for one in traced)
        assert [one.use.row for one in traced] == list(range(3))
    first = traced[0].sources[0]
    uses = [use for view in tracer.record(traced[0].partition, first.offset).views for use in view.uses]
    assert traced[0].use in uses
    assert position.needed(3) == 18
    assert first_needed(path, read_stream(path, STREAM), [position])


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 4), st.integers(0, 300))
def test_numbers_are_turned_around(batch: int, views: int, blocks: int, sample: int) -> None:
    order = SegmentOrder(blocks * views, batch, views)
    samples = order.base + np.arange(sample + 1)
    assert order.samples(order.numbers(samples)).tolist() == samples.tolist()
    group = order.base + np.arange(order.group)
    assert sorted(order.numbers(group).tolist()) == group.tolist()
    assert order.start(order.base + sample) <= order.base + sample < order.start(order.base + sample) + order.group
