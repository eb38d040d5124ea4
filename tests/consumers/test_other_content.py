"""A run that is resumed over other content than it was saved over: another cluster's stream of the same recipe."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.consumers.scenes import (
    ERAS,
    OPEN_ERAS,
    era_store,
    expected,
    grow,
    open_batches,
    open_steps,
    other_chains,
    other_eras,
    raises_in_workers,
    rows_of,
)
from tests.store.chains import STREAM, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import StepDataset
from tokenmill.errors import InputError, StoreError
from tokenmill.store import Store

STOPS = [sum(era.blocks for era in ERAS[: number + 1]) for number in range(len(OPEN_ERAS))]
"""Of each era, the sample after its last one."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Store]:
    folder = tmp_path_factory.mktemp("elsewhere")
    return {kept: era_store(folder / str(kept), other_eras(kept), other_chains(kept)) for kept in range(len(OPEN_ERAS))}


@pytest.mark.parametrize("passes", [1, 2])
def test_each_era_border_decides(store: Store, elsewhere: dict[int, Store], passes: int) -> None:
    """The last sample of what is the same can be behind a state, the first of what is not cannot; nor a second pass."""
    run = open_batches(store, batch_size=1, passes=passes)
    states = [run.state_dict(), *(run.state_dict() for _ in run)]
    for kept, other in elsewhere.items():
        taken = []
        for state in states:
            resumed = open_batches(other, passes=passes)
            try:
                resumed.load_state_dict(state)
            except InputError as error:
                assert re.search(r"other content of raw-text\.train .*state: era \d hash .*store: era \d", str(error))  # noqa: PT017 - or there was none
                assert resumed.state_dict()["sample"] == 0
                continue
            taken.append(state["sample"])
        assert taken == list(range((STOPS[kept - 1] if kept else 0) + 1))


def test_a_part_of_the_eras_is_compared_with_all_before_it(store: Store, elsewhere: dict[int, Store]) -> None:
    """With ``eras=range(…)`` as well, whose sequence does not begin with the stream."""
    run = open_batches(store, eras=range(2, 4))
    assert run.state_dict()["content"] is None
    next(iter(run))
    state = run.state_dict()
    assert state["content"] == [2, ERAS[2].hash.hex()]
    open_batches(elsewhere[3], eras=range(2, 5), state=state)
    with pytest.raises(InputError, match="state: era 2"):
        open_batches(elsewhere[2], eras=range(2, 4), state=state)


@pytest.mark.parametrize("kept", [0, 2, 3])
def test_a_store_that_catches_up_is_compared_before_its_first_batch(tmp_path: Path, store: Store, kept: int) -> None:
    """It waits for the state's era as ever; of other content, nothing is delivered, also when it is asked again."""
    state = open_batches(store).state_after(6)
    assert state["content"] == [2, ERAS[2].hash.hex()]
    chains, eras = other_chains(kept), other_eras(kept)
    behind = era_store(tmp_path, eras[:2], chains)
    resumed = open_batches(behind, timeout=0.01, poll_seconds=0.001, state=state)
    assert resumed.state_dict() == state
    with pytest.raises(StoreError, match=r"era 2 of raw-text\.train"):
        next(iter(resumed))
    write_eras(behind, eras[:3])  # without its blocks
    if kept == 3:
        with pytest.raises(StoreError, match=r"era 2 of raw-text\.train"):
            next(iter(resumed))
        grow(behind, eras, chains)
        assert rows_of(islice(resumed, 1)) == expected()[14:16]
        return
    for _ in range(2):
        with pytest.raises(InputError, match="state: era 2"):
            next(iter(resumed))
        assert resumed.state_dict() == state
        grow(behind, eras, chains)


def test_retired_blocks_do_not_hide_other_content(tmp_path: Path, store: Store) -> None:
    """Eras stay when their blocks go; the right store goes on with what it has."""
    state = open_batches(store, batch_size=16).state_after(0)
    same, other = (era_store(tmp_path / str(kept), other_eras(kept), other_chains(kept)) for kept in (4, 2))
    for one in (same, other):
        retire(one.path, STREAM, 0, 4)
    assert rows_of(islice(open_batches(same, state=state), 2)) == expected()[16:20]
    with pytest.raises(InputError, match="state: era 2"):
        open_batches(other, state=state)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_of_torch_know_it_too(tmp_path: Path, store: Store, elsewhere: dict[int, Store]) -> None:
    """Old ones lack a key, which torch takes with a planner that may load a part."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.stateful import Stateful  # noqa: PLC0415 - slow to import

    run = open_batches(store)
    assert isinstance(run, Stateful)
    rows_of(islice(run, 7))

    class Old:
        def state_dict(self) -> dict[str, Any]:
            return {name: value for name, value in run.state_dict().items() if name != "content"}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise NotImplementedError

    options = {"checkpoint_id": tmp_path / "new", "no_dist": True}
    checkpoint.save({"data": run}, **options)
    resumed = open_batches(store)
    checkpoint.load({"data": resumed}, **options)
    assert resumed.state_dict() == run.state_dict()
    with pytest.raises(InputError, match="state: era 2"):
        checkpoint.load({"data": open_batches(elsewhere[2])}, **options)

    options = {"checkpoint_id": tmp_path / "old", "no_dist": True}
    checkpoint.save({"data": Old()}, **options)
    resumed = open_batches(store)
    checkpoint.load({"data": resumed}, planner=checkpoint.DefaultLoadPlanner(allow_partial_load=True), **options)
    assert resumed.state_dict() == run.state_dict()


def test_step_datasets_know_it_too(store: Store, elsewhere: dict[int, Store], caplog: pytest.LogCaptureFixture) -> None:
    steps = open_steps(store, batch_size=3)
    last = list(islice(DataLoader(steps, batch_size=None), 5))[-1]
    state = last.state
    assert state == steps.state_after(last.step) == steps.state_dict()
    assert state["content"] == [2, ERAS[2].hash.hex()]
    for load in (StepDataset.resume, StepDataset.load_state_dict):
        for kept in (2, 0):
            with pytest.raises(InputError, match="state: era 2"):
                load(open_steps(elsewhere[kept], batch_size=3), state)
        resumed = open_steps(elsewhere[3], batch_size=3)
        load(resumed, state)
        batch = next(iter(resumed))
        assert batch.step == 5
        assert batch.x.tolist() == [row[:-1] for row in rows_of(open_batches(elsewhere[3]).skip(7))[1:4]]
    assert not caplog.records
    open_steps(store, batch_size=3).load_state_dict({name: one for name, one in state.items() if name != "content"})
    assert "does not say over which content" in caplog.text


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with this torch
def test_workers_of_a_stateful_loader_know_it_too(store: Store, elsewhere: dict[int, Store]) -> None:
    """Their own states say where the run began; what they used since then is in them as well."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(over: Store) -> Any:
        return loaders.StatefulDataLoader(open_steps(over, batch_size=3), batch_size=None, num_workers=2)

    running = loader(store)
    assert [batch.step for batch in islice(running, 5)] == [*range(5)]
    saved = running.state_dict()
    agreeing = loader(elsewhere[3])
    agreeing.load_state_dict(saved)
    assert next(iter(agreeing)).step == 5
    for other in (elsewhere[2], elsewhere[0]):
        refusing = loader(other)
        refusing.load_state_dict(saved)
        with raises_in_workers(InputError, "state: era 2"):
            next(iter(refusing))
