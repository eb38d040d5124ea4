"""Batches through torch's loaders, and where a loop begins whose batches workers read."""

import copy
import json
import multiprocessing
import os
import pickle
from collections.abc import Iterable
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.consumers.scenes import expected, open_batches, open_steps, rows_of
from tokenmill.consumers import Batch, StepDataset
from tokenmill.consumers.loading import LoopPlace, note_use
from tokenmill.errors import InputError, StoreError
from tokenmill.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # forked workers read files alone
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than some machines have cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with this torch
]

ROWS = expected(passes=2)
"""80 samples: 26 batches of three, and two left."""


def two_passes(store: Store, **options: Any) -> StepDataset:
    return open_steps(store, **({"batch_size": 3, "passes": 2} | options))


def load(dataset: StepDataset, workers: int, kind: str = "", **options: Any) -> DataLoader[Batch]:
    context = multiprocessing.get_context("spawn" if kind == "spawn" else "fork") if workers else None
    options |= {"num_workers": workers, "persistent_workers": kind in {"persistent", "spawn"}}
    return DataLoader(dataset, batch_size=None, multiprocessing_context=context, **options)


def stateful(dataset: StepDataset, workers: int, kind: str = "") -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    options = {"num_workers": workers, "persistent_workers": kind == "persistent"}
    return loaders.StatefulDataLoader(dataset, batch_size=None, **options)


def train(loader: Iterable[Batch], steps: int | None = None) -> list[list[int]]:
    """Train on so many batches, then break; return what the model saw. The loader has read further by then."""
    return rows_of(islice(loader, steps))


SPAWNED = pytest.param(2, "spawn", marks=pytest.mark.needs("minutes"))
LOOPS = [(0, ""), (1, ""), (3, ""), (2, "persistent")]


@pytest.mark.parametrize(("workers", "kind"), [*LOOPS, SPAWNED])
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_second_loop_goes_on_where_the_first_was_left_or_a_state_says(store: Store, workers: int, kind: str) -> None:
    """Also in workers that live on; a batch of before that is used then changes nothing."""
    dataset = two_passes(store)
    loader = load(dataset, workers, kind)
    seen = [train(loader, 3), train(loader, 1), train(loader, 7), train(loader), train(loader)]
    assert [len(rows) for rows in seen] == [9, 3, 21, 45, 0]
    assert [row for rows in seen for row in rows] == ROWS[:78]
    assert dataset.state_dict() == dataset.state_after(25)
    dataset.rewind()
    old = list(islice(loader, 9))
    assert train(loader, 2)
    for step in (20, 4):
        dataset.resume(dataset.state_after(step - 1))
        assert rows_of(old) == ROWS[:27]
        assert train(loader, 3) == ROWS[3 * step : 3 * step + 9]
    assert train(loader) == ROWS[21:78]
    dataset.rewind()
    assert train(loader) == ROWS[:78]


def test_loops_with_and_without_workers_take_turns(store: Store) -> None:
    dataset = two_passes(store)
    assert train(load(dataset, 0), 1) == ROWS[:3]
    assert train(load(dataset, 2), 4) == ROWS[3:15]
    assert dataset.state_dict() == dataset.state_after(4)
    assert train(load(dataset, 0), 2) == ROWS[15:21]
    assert dataset.state_dict() == dataset.state_after(6)


def test_a_copy_leaves_the_loop_alone_in_which_it_is_made(store: Store) -> None:
    """It begins where that loop stands, as a worker that is spawned does; each then goes its own way."""
    dataset = two_passes(store)
    loop = iter(dataset)
    seen = rows_of(islice(loop, 2))
    others = [copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))]  # noqa: S301 - our own
    assert seen + rows_of(loop) == ROWS[:78]
    assert [rows_of(other) for other in others] == [ROWS[6:78]] * 2
    assert dataset.state_dict() == dataset.state_after(25)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_carries_the_state_after_it(store: Store, workers: int) -> None:
    leg = two_passes(store, batch_size=1)
    leg.resume(two_passes(store).state_after(1))
    before = leg.state_dict()
    for batch in list(load(leg, workers))[3:6]:
        sample = batch.state["sample"]
        assert sample == 6 + batch.step - 1
        assert batch.state["ranges"] == [[0, 0, 3], [2, 6, 1]]
        for same in (batch, pickle.loads(pickle.dumps(batch)), batch.to("meta"), batch.to("cpu")):  # noqa: S301 - our own
            assert same.state == batch.state == leg.state_after(batch.step)
            assert (same.step, same.samples[1].tolist(), len(same)) == (batch.step, batch.samples[1].tolist(), 1)
        batches = open_batches(store, passes=2, batch_size=1, state=json.loads(json.dumps(batch.state)))
        assert rows_of(islice(batches, 1)) == ROWS[sample : sample + 1]
    assert before["sample"] == 6


def test_batches_that_stay_narrow_go_through_workers(store: Store) -> None:
    batches = list(load(two_passes(store, widen=False), 1))
    assert [row for batch in batches for row in batch.rows.tolist()] == rows_of(batches) == ROWS[:78]
    assert {tensor.dtype for batch in batches for tensor in batch} == {torch.uint16}
    with pytest.raises(InputError, match=r"made by another process.*mask_loss=True"):
        batches[0].documents()
    assert "step=3, x and y [3, 4] of torch.uint16 on cpu" in repr(batches[3])


@pytest.mark.slow
def test_what_a_worker_looks_at_is_not_used(store: Store) -> None:
    dataset = two_passes(store)
    loader = load(dataset, 2, collate_fn=_looked_at)
    list(islice(loader, 4))
    assert dataset.state_dict()["sample"] == 0
    assert train(loader, 2) + train(loader, 2) == ROWS[:12]


def _looked_at(batch: Batch) -> Batch:
    assert batch.x.shape == batch.y.shape
    return batch


@pytest.mark.slow
def test_what_workers_read_ahead_is_no_progress(store: Store) -> None:
    dataset = two_passes(store)
    used = list(islice(load(dataset, 2), 7))
    state = json.loads(json.dumps(dataset.state_after(used[-1].step)))
    assert state["sample"] == 21
    batches = open_batches(store, passes=2, state=state)
    assert rows_of(batches) == ROWS[21:79]
    again = two_passes(store, batch_size=1, world_size=2, rank=1)
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
    loader = stateful(two_passes(store), workers)
    steps = iter(loader)
    seen = [next(steps) for _ in range(used)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))  # noqa: S301 - our own
    resumed = stateful(two_passes(store), workers)
    resumed.load_state_dict(state)
    assert [*rows_of(seen), *rows_of(resumed)] == ROWS[:78]


@pytest.mark.parametrize(("workers", "kind"), LOOPS)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_stateful_loader_goes_back_and_on_until_nothing_is_left(store: Store, workers: int, kind: str) -> None:
    loader = stateful(two_passes(store), workers, kind)
    assert train(loader, 5) == ROWS[:15]
    state = loader.state_dict()
    assert train(loader, 9)
    loader.load_state_dict(state)
    assert train(loader, 4) + train(loader, 3) + train(loader) + train(loader) == ROWS[15:78]
    state = loader.state_dict()
    dataset = two_passes(store)
    resumed = stateful(dataset, workers, kind)
    resumed.load_state_dict(state)
    assert train(resumed) + train(resumed) == []
    dataset.rewind()
    assert train(resumed, 2) == ROWS[:6]


def test_states_of_other_sequences_are_refused(store: Store) -> None:
    state = two_passes(store).state_after(3)
    with pytest.raises(InputError, match="seed"):
        two_passes(store, seed=2).resume(state)


class Worker:
    """A process that has a copy of a place, and begins a loop when it is told to."""

    def __init__(self, place: LoopPlace) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(place, theirs), daemon=True)
        self._process.start()

    def ask(self, what: Any) -> Any:
        self._pipe.send(what)
        return self._pipe.recv()

    def begin(self) -> int:
        sample: int = self.ask("begin")
        return sample

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _work(place: LoopPlace, pipe: Connection) -> None:
    while (asked := pipe.recv()) is not None:
        if asked != "begin":
            place.set_in_worker(asked)
        pipe.send(place.begin(seed=1)["sample"] if asked == "begin" else None)


def use(place: LoopPlace, sample: int, turn: int | None = None) -> None:
    batch = SimpleNamespace(state={"sample": sample})
    note_use(place.key, place.turn if turn is None else turn, batch)


def test_workers_that_begin_late_begin_where_the_others_did() -> None:
    """Though the loop has used batches of theirs by then; in the first loop and in later ones."""
    place = LoopPlace({"sample": 0})
    workers = [Worker(place) for _ in range(3)]
    for loop in range(3):
        assert [worker.begin() for worker in workers[:2]] == [10 * loop] * 2
        use(place, 10 * loop + 3)
        assert workers[2].begin() == 10 * loop
        use(place, 10 * loop + 10)
    later = Worker(place)
    assert later.begin() == 30
    for worker in (*workers, later):
        worker.end()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o705])
def test_a_directory_that_others_could_write_to_is_not_used(mode: int) -> None:
    """In a shared /tmp somebody else may have made it, and would say where training goes on."""
    place = LoopPlace({"sample": 0})
    directory = Path(gettempdir()) / f"tokenmill-{place.key}-{os.getpid()}"
    directory.mkdir()
    directory.chmod(mode)
    for use_it in (lambda: use(place, 5), lambda: place.move({"sample": 1}), lambda: place.begin(seed=1)):
        with pytest.raises(StoreError, match="is not this user's alone"):
            use_it()
    directory.rmdir()
    directory.symlink_to(gettempdir())
    with pytest.raises(StoreError, match="is not this user's alone"):
        place.begin(seed=1)
    directory.unlink()


def test_a_state_that_is_set_is_where_all_begin() -> None:
    place = LoopPlace({"sample": 0})
    worker = Worker(place)
    assert worker.begin() == 0
    use(place, 20)
    before = place.turn
    place.move({"sample": 5})
    use(place, 30, turn=before)
    assert (worker.begin(), place.state["sample"]) == (5, 5)
    worker.end()


def test_workers_that_were_given_states_lead_back() -> None:
    """What they went on from is where the next loop begins, until a batch is used or a state is set."""
    place = LoopPlace({"sample": 0})
    use(place, 50)
    workers = [Worker(place) for _ in range(2)]
    workers[0].ask({"sample": 7})
    workers[1].ask({"sample": 9})
    others = Worker(place)
    assert others.begin() == 9
    use(place, 11, turn=place.turn + 1)
    assert place.state["sample"] == 11
    place.move({"sample": 2})
    assert [worker.begin() for worker in (*workers, others)] == [2, 2, 2]
    for worker in (*workers, others):
        worker.end()


def test_nothing_is_left_behind_and_a_batch_whose_data_set_is_gone_moves_nothing() -> None:
    place = LoopPlace({"sample": 0})
    worker = Worker(place)
    worker.begin()
    use(place, 3)
    key = place.key
    assert len(list(Path(gettempdir()).glob(f"tokenmill-{key}-*/*"))) == 2
    worker.end()
    assert list(Path(gettempdir()).glob(f"tokenmill-{key}-*"))
    del place
    assert not list(Path(gettempdir()).glob(f"tokenmill-{key}-*"))
    note_use(key, 0, None)
