"""The state after each batch, and how many there are."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumers.scenes import ERAS, INFO, OPEN_ERAS, era_store, expected, grow, open_batches, rows_of, together
from tests.store.chains import make_store
from tests.store.eras import write_eras
from tokenmill.store import Store

legs = st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=4)
"""World size, batch size and steps of processes that go on from each other's state."""


@pytest.mark.slow
@settings(max_examples=15)  # each opens a dozen readers
@given(legs, st.integers(0, 4), st.integers(0, 3))
def test_from_the_state_of_a_batch_the_next_one_follows(
    store: Store, made: list[tuple[int, int, int]], ahead: int, prefetch: int
) -> None:
    states: list[dict[str, Any]] = []
    state = open_batches(store, passes=2).state_dict()
    for world_size, batch_size, steps in made:
        ranks = [
            open_batches(store, rank=rank, world_size=world_size, batch_size=batch_size, passes=2)
            for rank in range(world_size)
        ]
        for rank in ranks:
            rank._prefetch = prefetch
            rank.load_state_dict(state)
        taken = [list(islice(rank, steps + ahead)) for rank in ranks]
        for step in zip(*(batches[:steps] for batches in taken), strict=True):
            assert len({json.dumps(batch.state) for batch in step}) == 1
            state = step[0].state
            assert ranks[0].state_after(step[0].step) == state
            states.append(state)
    last = open_batches(store, passes=2)
    last.load_state_dict(state)
    for number, then in enumerate(states):
        assert last.state_after(number)["sample"] == then["sample"]
    for number in range(0, len(states), 5):
        again = open_batches(store, passes=2, batch_size=1)
        again.load_state_dict(last.state_after(number))
        assert again.step == number + 1
        sample = states[number]["sample"]
        assert rows_of(islice(again, 1)) == expected(passes=2)[sample : sample + 1]


def test_a_state_is_the_batch_s_own(store: Store) -> None:
    batches = open_batches(store)
    batch = next(iter(batches))
    batch.state["sample"] = 7
    batches.rewind()
    assert batch.state["sample"] == 2
    assert batch.to("meta").state == batch.state
    assert batch.to("meta").x.device == torch.device("meta")
    assert batch.to("cpu") is batch


def test_a_narrow_batch_goes_to_a_device(store: Store) -> None:
    batch = next(iter(open_batches(store, widen=False))).to("meta")
    assert [(part.shape, part.dtype) for part in batch] == [((2, 4), torch.uint16)] * 2
    assert len(batch) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_batch_is_pinned_as_a_whole(store: Store) -> None:
    batch = next(iter(open_batches(store)))
    pinned = batch.pin_memory()
    assert [part.is_pinned() for part in pinned] == [True, True]
    assert (pinned.state, pinned.x.tolist()) == (batch.state, batch.x.tolist())
    assert pinned.to("cuda", non_blocking=True).y.tolist() == batch.y.tolist()


@given(legs, st.sampled_from([None, range(6), range(1, 4), range(4, 5)]), st.integers(1, 3))
def test_a_finite_run_has_as_many_steps_as_it_says(
    store: Store, made: list[tuple[int, int, int]], eras: range | None, passes: int
) -> None:
    state = None
    for world_size, batch_size, steps in [*made, (1, 1, 1000)]:
        options: dict[str, Any] = {"batch_size": batch_size, "world_size": world_size, "eras": eras, "passes": passes}
        batches = open_batches(store, **options)
        if state is not None:
            batches.load_state_dict(state)
        length, before = len(batches), batches.step
        taken = len(list(islice(batches, steps)))
        assert (batches.step, len(batches)) == (before + taken, length)
        if taken < steps:
            assert batches.step == length
        state = batches.state_dict()


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
    assert together([batches]) == expected()[6:]
    with pytest.raises(TypeError, match="not known"):
        len(open_batches(make_store(tmp_path / "empty", INFO)))
