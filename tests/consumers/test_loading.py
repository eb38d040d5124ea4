"""Batches through torch's loaders."""

import copy
import json
import multiprocessing
import pickle
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.consumers.scenes import expected, open_batches, rows_of
from tests.store.chains import STREAM
from tokenmill.consumers import Batch, StepDataset
from tokenmill.errors import InputError
from tokenmill.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # forked workers read files alone
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than some machines have cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with this torch
]

ROWS = expected(passes=2)
"""80 samples: 26 batches of three, and two left."""


def open_steps(store: Store, **options: Any) -> StepDataset:
    return StepDataset(
        store.path, STREAM, **({"batch_size": 3, "sequence_length": 4, "seed": 1, "passes": 2} | options)
    )


def load(dataset: StepDataset, workers: int, start: str = "fork", **options: Any) -> DataLoader[Batch]:
    context = multiprocessing.get_context(start) if workers else None
    return DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, **options)


def train(loader: Iterable[Batch], steps: int | None = None) -> list[list[int]]:
    """Train on so many batches, then break; return what the model saw. The loader has read further by then."""
    seen: list[list[int]] = []
    if steps == 0:
        return seen
    for number, batch in enumerate(loader, 1):
        seen += rows_of([batch])
        if number == steps:
            break
    return seen


SPAWNED = pytest.param(2, "spawn", marks=pytest.mark.needs("minutes"))
LOOPS = [(0, ""), (1, "fork"), (3, "fork"), (2, "persistent")]


@pytest.mark.parametrize(("workers", "kind"), [*LOOPS, SPAWNED])
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_second_loop_goes_on_where_the_first_was_left(store: Store, workers: int, kind: str) -> None:
    dataset = open_steps(store)
    options: dict[str, Any] = {"persistent_workers": True} if kind in ("persistent", "spawn") else {}
    loader = load(dataset, workers, "spawn" if kind == "spawn" else "fork", **options)
    seen = [train(loader, 3), train(loader, 1), train(loader, 7), train(loader), train(loader)]
    assert [len(rows) for rows in seen] == [9, 3, 21, 45, 0]
    assert [row for rows in seen for row in rows] == ROWS[:78]
    assert dataset.state_dict() == dataset.state_after(25)
    dataset.rewind()
    assert train(loader) == ROWS[:78]


def test_loops_with_and_without_workers_take_turns(store: Store) -> None:
    dataset = open_steps(store)
    assert train(load(dataset, 0), 1) == ROWS[:3]
    assert train(load(dataset, 2), 4) == ROWS[3:15]
    assert dataset.state_dict() == dataset.state_after(4)
    assert train(load(dataset, 0), 2) == ROWS[15:21]
    assert dataset.state_dict() == dataset.state_after(6)


def test_a_copy_leaves_the_loop_alone_in_which_it_is_made(store: Store) -> None:
    """It begins where that loop stands, as a worker that is spawned does; each then goes its own way."""
    dataset = open_steps(store)
    loop = iter(dataset)
    seen = rows_of(islice(loop, 2))
    others = [copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))]  # noqa: S301 - our own
    assert seen + rows_of(loop) == ROWS[:78]
    assert [rows_of(other) for other in others] == [ROWS[6:78]] * 2
    assert dataset.state_dict() == dataset.state_after(25)


@pytest.mark.parametrize(("workers", "kind"), LOOPS)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_state_that_is_set_counts_in_workers_that_live_on(store: Store, workers: int, kind: str) -> None:
    dataset = open_steps(store)
    loader = load(dataset, workers, persistent_workers=kind == "persistent")
    old = list(islice(loader, 9))
    assert train(loader, 2)
    for step in (20, 4):
        dataset.resume(dataset.state_after(step - 1))
        assert rows_of(old) == ROWS[:27]
        assert train(loader, 3) == ROWS[3 * step : 3 * step + 9]
    assert train(loader) == ROWS[21:78]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_carries_the_state_after_it(store: Store, workers: int) -> None:
    leg = open_steps(store, batch_size=1)
    leg.resume(open_steps(store).state_after(1))
    before = leg.state_dict()
    for batch in list(load(leg, workers))[3:6]:
        sample = batch.state["sample"]
        assert sample == 6 + batch.step - 1
        assert batch.state["ranges"] == [[0, 0, 3], [2, 6, 1]]
        for same in (batch, pickle.loads(pickle.dumps(batch)), batch.to("meta"), batch.to("cpu")):  # noqa: S301 - our own
            assert same.state == batch.state == leg.state_after(batch.step)
            assert (same.step, same.samples[1].tolist(), len(same)) == (batch.step, batch.samples[1].tolist(), 1)
        batches = open_batches(store, passes=2, batch_size=1)
        batches.load_state_dict(json.loads(json.dumps(batch.state)))
        assert rows_of(islice(batches, 1)) == ROWS[sample : sample + 1]
    assert before["sample"] == 6


def test_batches_that_stay_narrow_go_through_workers(store: Store) -> None:
    batches = list(load(open_steps(store, widen=False), 1))
    assert [row for batch in batches for row in batch.rows.tolist()] == rows_of(batches) == ROWS[:78]
    assert {tensor.dtype for batch in batches for tensor in batch} == {torch.uint16}
    with pytest.raises(InputError, match=r"made by another process.*mask_loss=True"):
        batches[0].documents()
    assert "step=3, x and y [3, 4] of torch.uint16 on cpu" in repr(batches[3])


@pytest.mark.slow
def test_what_a_worker_looks_at_is_not_used(store: Store) -> None:
    dataset = open_steps(store)
    loader = load(dataset, 2, collate_fn=_looked_at)
    list(islice(loader, 4))
    assert dataset.state_dict()["sample"] == 0
    assert train(loader, 2) + train(loader, 2) == ROWS[:12]


def _looked_at(batch: Batch) -> Batch:
    assert batch.x.shape == batch.y.shape
    return batch


@pytest.mark.slow
def test_what_workers_read_ahead_is_no_progress(store: Store) -> None:
    dataset = open_steps(store)
    used = list(islice(load(dataset, 2), 7))
    state = json.loads(json.dumps(dataset.state_after(used[-1].step)))
    assert state["sample"] == 21
    batches = open_batches(store, passes=2)
    batches.load_state_dict(state)
    assert rows_of(batches) == ROWS[21:79]
    again = open_steps(store, batch_size=1, world_size=2, rank=1)
    again.resume(state)
    rest = list(load(again, 3))
    assert rows_of(rest) == ROWS[22:80:2]
    assert rest[0].step == 7
    assert again.state_after(rest[4].step) == again.state_after(11)
    assert again.state_after(11)["sample"] == 21 + 2 * 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("used", [0, 1, 5, 25, 26])
@pytest.mark.slow
@pytest.mark.cases(2)
def test_a_stateful_loader_goes_on_after_what_it_delivered(store: Store, workers: int, used: int) -> None:
    loader = stateful(open_steps(store), workers)
    steps = iter(loader)
    seen = [next(steps) for _ in range(used)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))  # noqa: S301 - our own
    resumed = stateful(open_steps(store), workers)
    resumed.load_state_dict(state)
    assert [*rows_of(seen), *rows_of(resumed)] == ROWS[:78]


@pytest.mark.parametrize(("workers", "kind"), LOOPS)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_stateful_loader_has_nothing_left_after_the_last_batch(store: Store, workers: int, kind: str) -> None:
    options = {"persistent_workers": True} if kind == "persistent" else {}
    loader = stateful(open_steps(store), workers, **options)
    assert train(loader, 20) + train(loader) + train(loader) == ROWS[:78]
    state = loader.state_dict()
    dataset = open_steps(store)
    resumed = stateful(dataset, workers, **options)
    resumed.load_state_dict(state)
    assert train(resumed) + train(resumed) == []
    dataset.rewind()
    assert train(resumed, 2) == ROWS[:6]


@pytest.mark.parametrize(("workers", "kind"), LOOPS)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_stateful_loader_can_go_back_and_on(store: Store, workers: int, kind: str) -> None:
    options = {"persistent_workers": True} if kind == "persistent" else {}
    loader = stateful(open_steps(store), workers, **options)
    assert train(loader, 5)
    state = loader.state_dict()
    assert train(loader, 9)
    loader.load_state_dict(state)
    assert train(loader, 4) + train(loader, 3) + train(loader) == ROWS[15:78]


def stateful(dataset: StepDataset, workers: int, **options: Any) -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **options)


def test_states_of_other_sequences_are_refused(store: Store, tmp_path: Path) -> None:
    state = open_steps(store).state_after(3)
    with pytest.raises(InputError, match="seed"):
        open_steps(store, seed=2).resume(state)
