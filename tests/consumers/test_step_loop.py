"""Steps: how many there are, their states, sizes that change, chunks in order, and the last step (`drop_last`)."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.consumers.mixtures import open_mixture, places_of, stores_of
from tests.consumers.packed import given_documents, pack, packed_info, packed_store
from tests.consumers.scenes import ERAS, OPEN_ERAS, era_store, expected, grow, open_batches, open_ranks, rows_of
from tests.store.chains import STREAM, write_eras
from tokenmill.consumers import Batches, Mixture, StepDataset
from tokenmill.errors import InputError, StoreError
from tokenmill.samples.sequence import Position, SegmentOrder
from tokenmill.samples.tracing import Tracer
from tokenmill.samples.trainable import first_needed
from tokenmill.store import Store, read_stream

SIZES = [(0, 1), (3, 2), (5, 4)]
LENGTHS = [(0, 1), (2, 2), (4, 4)]


def in_views(rows: list[list[int]], length: int) -> list[list[int]]:
    return [row[at : at + length + 1] for row in rows for at in range(0, len(row) - 1, length)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_grow_at_the_steps_that_were_named(store: Store, world_size: int) -> None:
    ranks = open_ranks(store, world_size, batch_size=SIZES)
    steps = list(zip(*ranks, strict=True))
    assert [len(step[0]) for step in steps[:7]] == [1, 1, 1, 2, 2, 4, 4]
    assert len(ranks[0]) == len(steps) == ranks[0].step
    rows = [row for step in steps for row in rows_of(step)]
    assert rows == expected()[: len(rows)]
    ranges = [[step, at * world_size, size * world_size] for step, at, size in ((0, 0, 1), (3, 3, 2), (5, 7, 4))]
    assert ranks[0].state_dict()["ranges"] == ranges
    assert ranks[0].metrics.samples == len(rows) // world_size
    for step in (0, 2, 3, 4, 5):
        again = open_batches(store, batch_size=SIZES, state=steps[step][0].state)
        assert steps[step][0].state == ranks[0].state_after(step)
        first = sum(len(batch) for each in steps[: step + 1] for batch in each)
        left = rows_of(again)
        assert left == expected()[first : first + len(left)]
        assert 40 - first - len(left) < 4


@pytest.mark.parametrize("widen", [True, False])
def test_sequences_grow_at_the_steps_that_were_named(store: Store, *, widen: bool) -> None:
    batches = list(islice(open_batches(store, sequence_length=LENGTHS, widen=widen), 6))
    shapes = [tuple(batch.x.shape) for batch in batches]
    assert shapes == [(8, 1), (8, 1), (4, 2), (4, 2), (2, 4), (2, 4)]
    whole = expected()
    for batch, length in zip(batches, [1, 1, 2, 2, 4, 4], strict=True):
        assert rows_of([batch]) == in_views(whole[2 * batch.step : 2 * batch.step + 2], length)
        own = open_batches(store, sequence_length=length, batch_size=1, shuffle=False)
        by_place = {tuple(int(column[0]) for column in one.samples): one for one in own}
        ones = [by_place[tuple(place)] for place in np.array(batch.samples).T.tolist()]
        assert rows_of([batch]) == rows_of(ones)
        assert batch.sources() == [source for one in ones for source in one.sources()]
        ids = torch.cat([one.documents().document_ids for one in ones])
        assert batch.documents().document_ids.tolist() == ids.tolist()


def test_a_run_goes_on_in_the_phase_where_it_stood(store: Store) -> None:
    """Its state has the lengths of all steps, also where a later run has others."""
    options: dict[str, Any] = {"batch_size": SIZES, "sequence_length": LENGTHS}
    whole = list(open_batches(store, **options))
    for stop, batch in enumerate(whole[:6], 1):
        state = batch.state
        assert state["lengths"] == [list(point) for point in LENGTHS]
        again = open_batches(store, **options, state=state)
        assert [batch.x.tolist() for batch in again] == [batch.x.tolist() for batch in whole[stop:]]
    other = open_batches(store, batch_size=2, sequence_length=[(0, 2), (9, 4)], state=state)
    assert other.state_dict()["lengths"] == [[0, 1], [2, 2], [4, 4], [6, 2], [9, 4]]


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_take_turns_across_phases(store: Store, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": SIZES, "sequence_length": LENGTHS, "seed": 1}
    whole = [batch.x.tolist() for batch in Batches(store.path, STREAM, **options)]
    parts = [
        [b.x.tolist() for b in Batches(store.path, STREAM, worker=(n, workers), **options)] for n in range(workers)
    ]
    assert [parts[step % workers][step // workers] for step in range(len(whole))] == whole
    if workers == 2:
        loader = DataLoader(StepDataset(store.path, STREAM, **options), batch_size=None, num_workers=workers)
        assert [batch.x.tolist() for batch in loader] == whole


def test_mixtures_have_phases(tmp_path_factory: pytest.TempPathFactory) -> None:
    stores = stores_of(tmp_path_factory.mktemp("stores"), {"code": 3, "web": 4})
    weights = {"web": 2, "code": 1}
    plain = open_mixture(stores, weights, batch_size=1)
    whole = [(batch.streams[0], rows_of([batch])[0]) for batch in plain]
    options: dict[str, Any] = {"batch_size": SIZES, "sequence_length": LENGTHS}
    mixture = open_mixture(stores, weights, **options)
    batches = list(mixture)
    at = 0
    for batch in batches:
        split = 4 // batch.x.shape[1]
        size = len(batch) // split
        samples = [whole[at + place] for place in places_of(batch.step, size)]
        at += size
        assert batch.streams == tuple(name for name, _ in samples for _ in range(split))
        assert rows_of([batch]) == in_views([row for _, row in samples], batch.x.shape[1])
    assert len(mixture) == len(batches)
    again = open_mixture(stores, weights, **options, state=batches[3].state)
    assert [batch.x.tolist() for batch in again] == [batch.x.tolist() for batch in batches[4:]]


def test_a_state_is_the_batch_s_own(store: Store) -> None:
    batches = open_batches(store)
    batch = next(iter(batches))
    batch.state["sample"] = 7
    batches.rewind()
    assert batch.state["sample"] == 2
    assert batch.to("meta").state == batch.state
    assert batch.to("meta").x.device == torch.device("meta")
    assert batch.to("cpu") is batch
    narrow = next(iter(open_batches(store, widen=False))).to("meta")
    assert [(part.shape, part.dtype) for part in narrow] == [((2, 4), torch.uint16)] * 2
    assert len(narrow) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_batch_is_pinned_as_a_whole(store: Store) -> None:
    batch = next(iter(open_batches(store)))
    pinned = batch.pin_memory()
    assert [part.is_pinned() for part in pinned] == [True, True]
    assert (pinned.state, pinned.x.tolist()) == (batch.state, batch.x.tolist())
    assert pinned.to("cuda", non_blocking=True).y.tolist() == batch.y.tolist()


def test_a_run_without_an_end_has_no_length(tmp_path: Path) -> None:
    """Until its last era is in the store: an error that frameworks take for an endless loop; nothing is waited for."""
    growing = era_store(tmp_path / "growing", OPEN_ERAS[:3])
    batches, named = open_batches(growing), open_batches(growing, eras=range(4))
    for endless in (batches, named):
        with pytest.raises(TypeError, match=r"not known.*eras=range\(0, 8\)"):
            len(endless)
        assert endless
        assert list(islice(endless, 3))
        assert endless.state_after(1000)["sample"] == 2002
    write_eras(growing, ERAS)
    assert (len(batches), len(named)) == (20, sum(era.blocks for era in ERAS[:4]) // 2)
    grow(growing, ERAS)
    assert rows_of(batches) == expected()[6:]
    with pytest.raises(TypeError, match="not known"):
        len(open_batches(era_store(tmp_path / "empty", [])))


WHOLE: dict[str, Any] = {"drop_last": False, "timeout": 0.0}


@given(
    world_size=st.integers(1, 9),
    batch_size=st.sampled_from([1, 2, 3, 7, 50, [(0, 3), (2, 5)], [(0, 1), (1, 64)]]),
    passes=st.integers(1, 2),
    length=st.sampled_from([2, 4, [(0, 2), (1, 4)]]),
    on_damage=st.sampled_from(["refuse", "skip"]),
)
def test_all_samples_are_delivered_and_all_ranks_make_as_many_steps(
    store: Store, *, world_size: int, batch_size: Any, passes: int, length: Any, on_damage: str
) -> None:
    """Whatever the last step has: its samples are divided to one, and nobody gets one that another has."""
    options: dict[str, Any] = {"batch_size": batch_size, "sequence_length": length, "on_damage": on_damage}
    ranks = open_ranks(store, world_size, passes=passes, **options, **WHOLE)
    steps = list(zip(*ranks, strict=True))
    assert {len(rank) for rank in ranks} == {len(steps)}
    whole = expected(passes=passes, length=2 if length == 2 else 4)
    found = rows_of(batch for step in steps for batch in step)
    if isinstance(length, list):
        split = [row for step in steps for batch in step if batch.x.shape[1] == 2 for row in rows_of([batch])]
        joined = [[*first, *second[1:]] for first, second in zip(split[::2], split[1::2], strict=True)]
        found = joined + found[len(split) :]
    assert found == whole
    for step in steps:
        sizes = [len(batch) for batch in step]
        assert max(sizes) - min(sizes) <= 4 // step[0].x.shape[1]
        assert len({json.dumps(batch.state) for batch in step}) == 1
    assert steps[-1][0].state["sample"] == len(whole) == ranks[-1].state_dict()["sample"]
    assert ranks[0].state_dict() == steps[-1][-1].state == ranks[0].state_after(len(steps) - 1)
    assert not list(ranks[0])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [3, 7, 16, 50])
@pytest.mark.cases(4)
def test_any_number_of_workers_gives_the_same(store: Store, workers: int, batch_size: int) -> None:
    options = {"batch_size": batch_size, "sequence_length": 4, "seed": 1, **WHOLE}
    dataset = StepDataset(store.path, STREAM, **options)
    batches = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert rows_of(batches) == expected()
    assert [batch.step for batch in batches] == list(range(len(dataset)))
    assert batches[-1].state["sample"] == dataset.state_dict()["sample"] == 40
    assert not list(DataLoader(dataset, batch_size=None, num_workers=workers))


@given(st.integers(1, 5), st.integers(1, 50), st.integers(0, 9))
def test_one_of_many_workers_has_the_last_step(store: Store, workers: int, batch_size: int, skipped: int) -> None:
    own = [open_batches(store, batch_size=batch_size, worker=(w, workers), **WHOLE) for w in range(workers)]
    parts = [list(worker.skip(skipped)) for worker in own]
    steps = sorted((batch for part in parts for batch in part), key=lambda batch: batch.step)
    assert rows_of(steps) == expected()[skipped * workers * batch_size :]
    assert [batch.step for batch in steps] == list(range(skipped * workers, skipped * workers + len(steps)))


def test_what_is_left_is_known_when_the_stream_has_ended(tmp_path: Path) -> None:
    store = era_store(tmp_path, OPEN_ERAS)
    batches = open_batches(store, batch_size=16, **WHOLE)
    rows: list[list[int]] = []
    with pytest.raises(StoreError, match="waiting for era 5"):
        rows.extend(row for batch in batches for row in rows_of([batch]))
    assert batches.step == 2
    grow(store, ERAS)
    rows = rows_of(open_batches(store, batch_size=16, **WHOLE))
    assert rows_of(batches) == expected()[32:] == rows[32:]
    assert batches.step == len(batches) == 3


def test_a_batch_without_samples_is_a_batch(store: Store) -> None:
    """For the rank that gets none of three: it has documents, a state and a step, and no labels."""
    _, last = open_batches(store, batch_size=37, mask_loss=True, **WHOLE)
    assert len(last) == 3
    ends = [list(rank)[-1] for rank in open_ranks(store, 37, batch_size=1, mask_loss=True, **WHOLE)]
    assert sum(map(len, ends)) == 3
    empty = next(batch for batch in ends if not len(batch))
    assert (empty.x.shape, empty.y.shape, empty.x.dtype) == ((0, 4), (0, 4), torch.int64)
    assert empty.documents().document_ids.shape == (0, 4)
    assert empty.documents().cu_seqlens.tolist() == [0]
    assert empty.label_tokens == 0
    assert (empty.sources(), empty.streams, empty.step, empty.state["sample"]) == ([], (), 1, 40)


CHUNK, SEGMENT = 12, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    info = packed_info("chunks", block_tokens=CHUNK + 1)
    blocks = {
        n: pack(given_documents([40, 27, 9, 13, 90, 26, 14, 70, 13, 55], first=n), "chunks", CHUNK + 1) for n in (0, 1)
    }
    assert len(blocks[0]) == 26
    return packed_store(tmp_path_factory.mktemp("store"), info, blocks, [{0: 7}, {0: 11, 1: 20}, {0: 26, 1: 26}]).path


def open_in_order(path: Path, **options: Any) -> Batches:
    return open_batches(path, **({"batch_size": 3, "sequence_length": SEGMENT, "in_order": True} | options))


def columns(batches: Any) -> list[tuple[bool, list[list[int]]]]:
    """Return whether each batch begins chunks, and its rows, the last of y included."""
    return [(batch.begins, rows_of([batch])) for batch in batches]


def chunks_of(path: Path, *, shuffle: bool = True, passes: int = 1) -> list[list[int]]:
    """Return the chunks in the order of a run whose samples are whole chunks."""
    return rows_of(open_batches(path, batch_size=1, sequence_length=CHUNK, shuffle=shuffle, passes=passes))


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
            open_in_order(path, batch_size=batch_size, world_size=world_size, rank=rank, state=state)
            for rank in range(world_size)
        ]
        taken = [columns(islice(rank, steps)) for rank in ranks]
        seen += [(parts[0][0], [row for _, rows in parts for row in rows]) for parts in zip(*taken, strict=True)]
        assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
        state = json.loads(json.dumps(ranks[0].state_dict()))
    assert seen == whole[: len(seen)]


def test_another_size_begins_with_new_chunks(path: Path) -> None:
    batches = open_in_order(path)
    list(islice(batches, 6))
    other = open_in_order(path, batch_size=2, state=batches.state_dict())
    chunks = chunks_of(path)
    assert columns(islice(other, 3)) == [
        (view == 0, [chunk[view * SEGMENT : (view + 1) * SEGMENT + 1] for chunk in chunks[6:8]]) for view in range(3)
    ]
    assert (other.step, len(other)) == (9, 6 + 46 // 2 * 3)
    again = open_in_order(path, batch_size=4, state=json.loads(json.dumps(other.state_dict())))
    assert columns(islice(again, 1)) == [(True, [chunk[: SEGMENT + 1] for chunk in chunks[8:12]])]
    with pytest.raises(InputError, match=r"amid chunks that are read 4 side by side: give as many"):
        open_in_order(path, state=again.state_dict())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_workers_take_turns(path: Path) -> None:
    whole = columns(open_in_order(path))
    dataset = StepDataset(path, STREAM, batch_size=3, sequence_length=SEGMENT, seed=1, in_order=True)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert columns(islice(loader, 4)) + columns(loader) == whole


def test_what_has_no_order_or_no_whole_steps_is_refused(path: Path) -> None:
    plain = open_in_order(path, in_order=False)
    assert "in_order" not in plain.state_dict()
    with pytest.raises(InputError, match="in_order True"):
        plain.load_state_dict(open_in_order(path).state_dict())
    with pytest.raises(InputError, match="in_order False"):
        open_in_order(path, state=plain.state_dict())
    with pytest.raises(InputError, match="a step takes 60 samples"):
        list(open_in_order(path, batch_size=60))
    with pytest.raises(InputError, match="stream 'a' has drop_last=False"):
        Mixture({"a": Batches(path, STREAM, batch_size=2, drop_last=False)}, {"a": 1})


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
