"""The sequence of samples, where a run stands in it, and what its state says: arithmetic alone."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.consumers.scenes import CHAINS, INFO
from tests.store.chains import make_eras, make_info
from tokenmill.errors import InputError
from tokenmill.samples.sequence import EraOrder, Numbers, Position, Ranks, Samples, SequenceId, count_views

steps = st.lists(st.dictionaries(st.integers(0, 2), st.integers(1, 5), min_size=1), min_size=1, max_size=4)


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], EraOrder]:
    stops, reached = [], {0: 0, 1: 0, 2: 0}
    for step in draw(steps):
        reached = {partition: blocks + step.get(partition, 0) for partition, blocks in reached.items()}
        stops.append(dict(reached))
    era = make_eras(INFO, CHAINS, stops)[-1]
    views = draw(st.integers(1, 3))
    samples = [
        (partition, block, view)
        for partition, part in enumerate(era.ranges)
        for block in range(part.first, part.stop)
        for view in range(views)
    ]
    shuffle = draw(st.booleans())
    return samples, EraOrder(era, views=views, shuffle=shuffle, seed=draw(st.integers(0, 9)), passed=0)


def samples_at(order: EraOrder, positions: Numbers) -> Samples:
    return order.samples_of(order.items(positions))


@given(orders())
def test_every_sample_of_an_era_has_one_place(found: tuple[list[tuple[int, int, int]], EraOrder]) -> None:
    samples, order = found
    assert order.samples == len(samples)
    placed = list(zip(*(column.tolist() for column in samples_at(order, np.arange(order.samples))), strict=True))
    assert sorted(placed) == samples
    for position, sample in enumerate(placed):
        assert tuple(int(column[0]) for column in samples_at(order, np.array([position]))) == sample


def test_without_shuffling_samples_come_as_they_lie() -> None:
    order = EraOrder(make_eras(INFO, CHAINS, [{0: 2, 2: 1}])[0], views=2, shuffle=False, seed=0, passed=0)
    placed = list(zip(*(column.tolist() for column in samples_at(order, np.arange(6))), strict=True))
    assert placed == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (2, 0, 0), (2, 0, 1)]


def test_large_eras_are_asked_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    era = make_eras(INFO, CHAINS, [{0: 20, 1: 13}])[0]
    kept = samples_at(EraOrder(era, views=1, shuffle=True, seed=3, passed=1), np.arange(33))
    monkeypatch.setattr("tokenmill.samples.sequence._STORED", 32)
    asked = EraOrder(era, views=1, shuffle=True, seed=3, passed=1)
    for first in range(33):
        assert [column[0] for column in samples_at(asked, np.array([first]))] == [column[first] for column in kept]


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 8), st.sampled_from([1, 2, 3, 4, 8]))
def test_ranks_share_every_step_without_overlap(first: int, count: int, batch_size: int, world_size: int) -> None:
    ranks = [Ranks(batch_size, rank, world_size).samples(first, count).reshape(count, -1) for rank in range(world_size)]
    whole = batch_size * world_size
    assert np.concatenate(ranks, axis=1).reshape(-1).tolist() == list(range(first, first + count * whole))


@pytest.mark.parametrize(("batch_size", "rank", "world_size"), [(0, 0, 1), (1, 1, 1), (1, -1, 2), (1, 0, 0)])
def test_ranks_that_cannot_be_are_refused(batch_size: int, rank: int, world_size: int) -> None:
    with pytest.raises(InputError, match="rank from 0 to below world_size"):
        Ranks(batch_size, rank, world_size)


def test_a_sequence_length_divides_the_blocks() -> None:
    info = make_info(block_tokens=1025)
    assert [count_views(info, length) for length in (1024, 512, 1)] == [1, 2, 1024]
    for wrong in (0, -1, 1025, 1000):
        with pytest.raises(InputError, match="give 1024 or 512 or 256 or 128, or mill"):
            count_views(info, wrong)


SEQUENCE = SequenceId("raw-text.train", "00" * 16, 4, 1, shuffle=True, eras=(0, None), passes=1)

runs = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=5)
"""Global batch and number of steps of runs that went on from each other."""


def after(made: list[tuple[int, int]]) -> Position:
    position = Position.beginning(SEQUENCE, made[0][0])
    for size, count in made:
        position = Position.from_dict(json.loads(json.dumps(position.to_dict())), SEQUENCE)
        position = position.with_batches_of(size).after(count)
    return position


@given(runs)
@example([(2, 1), (1, 0), (2, 1), (1, 0)])
def test_a_position_counts_samples_and_steps(made: list[tuple[int, int]]) -> None:
    """Which samples each step took is told; a state has a range for each change of the size, none for no step."""
    position = after(made)
    taken = [range(0)]
    for size, count in made:
        taken += [range(last, last + size) for last in range(taken[-1].stop, taken[-1].stop + count * size, size)]
    assert (position.step, position.sample) == (len(taken) - 1, taken[-1].stop)
    assert [position.samples_of(step) for step in range(position.step)] == taken[1:]
    for wrong in (-1, position.step):
        with pytest.raises(InputError, match="not made"):
            position.samples_of(wrong)
    state = position.to_dict()
    assert json.loads(json.dumps(state)) == state
    assert Position.read(json.loads(json.dumps(state))) == position
    sizes = [size for size, count in made if count] or [made[-1][0]]
    changes = 1 + sum(first != second for first, second in pairwise(sizes))
    assert len(state["ranges"]) in {changes, changes + 1}


@pytest.mark.parametrize(
    "changed",
    [
        {"stream": "raw-text.validation"}, {"fingerprint": "11" * 16}, {"sequence_length": 2}, {"seed": 2},
        {"shuffle": False}, {"eras": (1, None)}, {"eras": (0, 5), "passes": 2},
    ],
    ids=str,
)  # fmt: skip
def test_a_state_of_another_sequence_is_refused(changed: dict[str, object]) -> None:
    other = replace(SEQUENCE, **changed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"another sequence of samples: .*{next(iter(changed))}"):
        Position.from_dict(Position.beginning(other, 2).to_dict(), SEQUENCE)


def test_a_position_knows_where_the_run_stood_before_any_step() -> None:
    early = Position.beginning(SEQUENCE, 32).after(625)
    late = early.with_batches_of(16).after(10)
    assert late.before(635) == late
    assert late.before(700) == late.after(65)
    assert late.before(625) == early.with_batches_of(16)
    assert late.before(624) == Position.beginning(SEQUENCE, 32).after(624)
    assert late.before(0) == Position.beginning(SEQUENCE, 32)


@pytest.mark.parametrize("changed", [{"passes": 2}, {"eras": (0, 5)}])
def test_a_sequence_may_become_longer_or_shorter(changed: dict[str, object]) -> None:
    other = replace(SEQUENCE, **changed)  # type: ignore[arg-type]
    state = Position.beginning(other, 2).after(3).to_dict()
    assert Position.from_dict(state, SEQUENCE).sample == 6


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2}, {"sample": -2}, {"sample": 5}, {"sample": "4"}, {"sample": True},
        {"ranges": []}, {"ranges": [[0, 0, 0]]}, {"ranges": [[1, 0, 2]]}, {"ranges": [[0, 0, 2], [1, 4, 2]]},
        {"ranges": [[0, 0, 2], [4, 8, 2]]}, {"ranges": [[0, 0]]},
        {"eras": 3}, {"eras": [0, 0]}, {"eras": [-1, 4]}, {"passes": 0}, {"sequence_length": "4"}, {"seed": None},
        {"shuffle": 1}, {"stream": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_state_is_refused(changed: dict[str, object]) -> None:
    state = Position.beginning(SEQUENCE, 2).after(2).to_dict()
    with pytest.raises(InputError, match=r"state_dict\(\)|version"):
        Position.from_dict(state | changed, SEQUENCE)
    with pytest.raises(InputError, match=r"state_dict\(\)"):
        Position.from_dict({key: value for key, value in state.items() if key not in changed}, SEQUENCE)
