"""Batches through torch's loaders."""

import json
import multiprocessing
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.consumers.scenes import era_store, expected, open_batches, rows_of
from tests.segments.chains import STREAM
from tokenmill.consumers import Batch, StepDataset
from tokenmill.errors import InputError
from tokenmill.segments import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # forked workers read files alone
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than some machines have cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with this torch
]

ROWS = expected(passes=2)
"""80 samples: 26 batches of three, and two left."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store that tests only read."""
    return era_store(tmp_path_factory.mktemp("store"))


def open_steps(store: Store, **options: Any) -> StepDataset:
    """Open two passes in batches of three, unless the options say otherwise."""
    return StepDataset(
        store.path, STREAM, **({"batch_size": 3, "sequence_length": 4, "seed": 1, "passes": 2} | options)
    )


def load(dataset: StepDataset, workers: int, start: str = "fork") -> DataLoader[Batch]:
    """Return torch's loader."""
    context = multiprocessing.get_context(start) if workers else None
    return DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)


def joined(steps: Iterable[Batch]) -> list[list[int]]:
    """Put x and y together again."""
    return [[*x, y[-1]] for xs, ys in steps for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]


@pytest.mark.parametrize(("workers", "start"), [(0, ""), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_workers_take_turns_without_changing_the_order(store: Store, workers: int, start: str) -> None:
    """However many; the remainder of 26 steps among them included. Each epoch begins at the beginning."""
    loader = load(open_steps(store), workers, start)
    found = list(loader)
    assert joined(found) == ROWS[:78]
    assert [batch.step for batch in found] == list(range(26))
    assert joined(islice(loader, 2)) == ROWS[:6]
    if start != "spawn":
        assert joined(loader) == ROWS[:78]


def test_what_workers_read_ahead_is_no_progress(store: Store) -> None:
    """The step of the last item that was used gives the one state, for any ranks, workers and Batches."""
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
    assert joined(rest) == ROWS[22:80:2]
    assert rest[0].step == 7
    assert again.state_after(rest[4].step) == again.state_after(11)
    assert again.state_after(11)["sample"] == 21 + 2 * 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("used", [0, 1, 5, 25, 26])
def test_a_stateful_loader_goes_on_after_what_it_delivered(store: Store, workers: int, used: int) -> None:
    """With as many workers; it counts what it delivered, not what workers read ahead."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(open_steps(store), batch_size=None, num_workers=workers)
    steps = iter(loader)
    seen = [next(steps) for _ in range(used)]
    state = json.loads(json.dumps(loader.state_dict(), default=str)) if not workers else loader.state_dict()
    resumed = stateful.StatefulDataLoader(open_steps(store), batch_size=None, num_workers=workers)
    resumed.load_state_dict(state)
    assert [*joined(seen), *joined(resumed)] == ROWS[:78]


def test_states_of_other_sequences_are_refused(store: Store, tmp_path: Path) -> None:
    """As by Batches."""
    state = open_steps(store).state_after(3)
    with pytest.raises(InputError, match="seed"):
        open_steps(store, seed=2).resume(state)
