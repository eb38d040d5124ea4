"""Batch sizes and sequence lengths that change with the steps: one order of tokens, whatever they are."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.consumers.mixtures import open_mixture, places_of, stores_of
from tests.consumers.scenes import expected, open_batches, rows_of
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, StepDataset
from tokenmill.errors import InputError
from tokenmill.store import Store

SIZES = [(0, 1), (3, 2), (5, 4)]
LENGTHS = [(0, 1), (2, 2), (4, 4)]


def in_views(rows: list[list[int]], length: int) -> list[list[int]]:
    return [row[at : at + length + 1] for row in rows for at in range(0, len(row) - 1, length)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_grow_at_the_steps_that_were_named(store: Store, world_size: int) -> None:
    ranks = [open_batches(store, batch_size=SIZES, rank=rank, world_size=world_size) for rank in range(world_size)]
    steps = list(zip(*ranks, strict=True))
    assert [len(step[0]) for step in steps[:7]] == [1, 1, 1, 2, 2, 4, 4]
    assert len(ranks[0]) == len(steps) == ranks[0].step
    rows = [row for step in steps for row in rows_of(step)]
    assert rows == expected()[: len(rows)]
    assert ranks[0].state_dict()["ranges"] == [
        [0, 0, world_size],
        [3, 3 * world_size, 2 * world_size],
        [5, 7 * world_size, 4 * world_size],
    ]
    assert ranks[0].metrics.samples == len(rows) // world_size
    for step in (0, 2, 3, 4, 5):
        again = open_batches(store, batch_size=SIZES)
        again.load_state_dict(steps[step][0].state)
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
    options: dict[str, Any] = {"batch_size": SIZES, "sequence_length": LENGTHS}
    whole = [batch.x.tolist() for batch in open_batches(store, **options)]
    for stop in (1, 2, 3, 4, 5, 6):
        first = open_batches(store, **options)
        made = list(islice(first, stop))
        state = made[-1].state
        assert state["lengths"] == [list(point) for point in LENGTHS]
        again = open_batches(store, **options)
        again.load_state_dict(state)
        assert [batch.x.tolist() for batch in again] == whole[stop:]
    other = open_batches(store, batch_size=2, sequence_length=[(0, 2), (9, 4)])
    other.load_state_dict(state)
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
    again = open_mixture(stores, weights, **options)
    again.load_state_dict(batches[3].state)
    assert [batch.x.tolist() for batch in again] == [batch.x.tolist() for batch in batches[4:]]


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_length": [(0, 3), (4, 4)]},
        {"sequence_length": [(1, 2)]},
        {"sequence_length": [(0, 2), (0, 4)]},
        {"sequence_length": []},
        {"batch_size": [(0, 2), (5, 0)]},
        {"batch_size": [(0, 2), (-1, 3)]},
        {"batch_size": [2]},
    ],
)
def test_schedules_that_cannot_be_are_refused(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(options))}.*give"):
        open_batches(store, **options)
