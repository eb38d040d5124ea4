"""The sequence of samples: arithmetic alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import CHAINS, INFO
from tests.store.chains import make_info
from tests.store.eras import make_eras
from tokenmill.errors import InputError
from tokenmill.samples.sequence import EraOrder, Numbers, Ranks, Samples, count_views

steps = st.lists(st.dictionaries(st.integers(0, 2), st.integers(1, 5), min_size=1), min_size=1, max_size=4)


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], EraOrder]:
    """Return all samples of an era, by partition, number and view, and their order."""
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
    """Return the samples at these positions."""
    return order.samples_of(order.items(positions))


@given(orders())
def test_every_sample_of_an_era_has_one_place(found: tuple[list[tuple[int, int, int]], EraOrder]) -> None:
    """Every view of every block of every partition."""
    samples, order = found
    assert order.samples == len(samples)
    placed = list(zip(*(column.tolist() for column in samples_at(order, np.arange(order.samples))), strict=True))
    assert sorted(placed) == samples
    for position, sample in enumerate(placed):
        assert tuple(int(column[0]) for column in samples_at(order, np.array([position]))) == sample


def test_without_shuffling_samples_come_as_they_lie() -> None:
    """By partition, then number, then view."""
    order = EraOrder(make_eras(INFO, CHAINS, [{0: 2, 2: 1}])[0], views=2, shuffle=False, seed=0, passed=0)
    placed = list(zip(*(column.tolist() for column in samples_at(order, np.arange(6))), strict=True))
    assert placed == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (2, 0, 0), (2, 0, 1)]


def test_large_eras_are_asked_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same answers as those whose order is kept."""
    era = make_eras(INFO, CHAINS, [{0: 20, 1: 13}])[0]
    kept = samples_at(EraOrder(era, views=1, shuffle=True, seed=3, passed=1), np.arange(33))
    monkeypatch.setattr("tokenmill.samples.sequence._STORED", 32)
    asked = EraOrder(era, views=1, shuffle=True, seed=3, passed=1)
    for first in range(33):
        assert [column[0] for column in samples_at(asked, np.array([first]))] == [column[first] for column in kept]


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 8), st.sampled_from([1, 2, 3, 4, 8]))
def test_ranks_share_every_step_without_overlap(first: int, count: int, batch_size: int, world_size: int) -> None:
    """Side by side, their slices are the samples in order, whatever the sizes."""
    ranks = [Ranks(batch_size, rank, world_size).samples(first, count).reshape(count, -1) for rank in range(world_size)]
    whole = batch_size * world_size
    assert np.concatenate(ranks, axis=1).reshape(-1).tolist() == list(range(first, first + count * whole))


@pytest.mark.parametrize(("batch_size", "rank", "world_size"), [(0, 0, 1), (1, 1, 1), (1, -1, 2), (1, 0, 0)])
def test_ranks_that_cannot_be_are_refused(batch_size: int, rank: int, world_size: int) -> None:
    """With what would do."""
    with pytest.raises(InputError, match="rank from 0 to below world_size"):
        Ranks(batch_size, rank, world_size)


def test_a_sequence_length_divides_the_blocks() -> None:
    """Else those that do are named."""
    info = make_info(block_tokens=1025)
    assert [count_views(info, length) for length in (1024, 512, 1)] == [1, 2, 1024]
    for wrong in (0, -1, 1025, 1000):
        with pytest.raises(InputError, match="give 1024 or 512 or 256 or 128, or mill"):
            count_views(info, wrong)
