"""The order inside an era: a permutation that anyone computes alike, at any place, in constant memory."""

from collections import Counter
from hashlib import sha256
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.eras import Permutation

seeds = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**64 - 1)


@given(st.integers(0, 3000), seeds, counts, counts)
def test_every_item_comes_once(size: int, seed: int, passed: int, era: int) -> None:
    order = Permutation(size, seed=seed, passed=passed, era=era)
    assert len(order) == size
    assert sorted(order(np.arange(size)).tolist()) == list(range(size))


@given(st.integers(1, 2**40), seeds, st.data())
def test_positions_can_be_asked_for_one_by_one(size: int, seed: int, data: st.DataObject) -> None:
    order = Permutation(size, seed=seed, passed=0, era=0)
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12)), np.int64)
    items = order(positions)
    assert items.dtype == np.int64
    assert ((items >= 0) & (items < size)).all()
    assert [int(order(np.array([position]))[0]) for position in positions] == items.tolist()
    assert order(positions.reshape(1, -1)).tolist() == [items.tolist()]


@pytest.mark.parametrize("size", [1, 60, 3000, 8192, 40_000, 65_536, 70_000])
def test_all_positions_at_once_give_what_few_do(size: int) -> None:
    order = Permutation(size, seed=5, passed=1, era=2)
    parts = np.array_split(np.arange(size), 64)
    assert order(np.arange(size)).tolist() == np.concatenate([order(part) for part in parts]).tolist()


def test_seed_pass_and_era_give_orders_of_their_own() -> None:
    orders = {
        tuple(Permutation(100, seed=seed, passed=passed, era=era)(np.arange(100)).tolist())
        for seed in (0, 1, -1)
        for passed in (0, 1)
        for era in (0, 1, 2**40)
    }
    assert len(orders) == 18


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_small_orders_are_equally_likely(size: int) -> None:
    """All orders of a few items come, none more than by chance: chi squared within five standard deviations."""
    each = 20
    times = each * factorial(size)
    found = Counter(
        tuple(Permutation(size, seed=seed, passed=0, era=0)(np.arange(size)).tolist()) for seed in range(times)
    )
    assert len(found) == factorial(size)
    freedom = len(found) - 1
    chi_squared = sum((count - each) ** 2 / each for count in found.values())
    assert abs(chi_squared - freedom) < 5 * (2 * freedom) ** 0.5 + 5


def test_neighbours_do_not_stay_together() -> None:
    order = Permutation(8192, seed=1, passed=0, era=0)(np.arange(8192))
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 12
    assert abs(np.corrcoef(order, np.arange(8192))[0, 1]) < 0.05


def test_order_is_the_same_for_ever() -> None:
    """Checkpoints of years ago continue: these numbers never change."""
    assert Permutation(10, seed=42, passed=1, era=7)(np.arange(10)).tolist() == [9, 5, 6, 2, 3, 0, 1, 7, 4, 8]
    digest = sha256()
    for size in range(300):
        order = Permutation(size, seed=size - 150, passed=size % 3, era=11 * size)
        digest.update(order(np.arange(size)).astype("<i8").tobytes())
    assert digest.hexdigest() == "ae886f98853d10b87516a296b6d0eb41394dd9e86634ea598216fd3af73ada38"


def test_small_orders_are_not_walked_through_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two items in a square of 64 values that takes dozens of steps, each as dear as one for thousands of values."""

    def walked(*_: object) -> None:
        pytest.fail("the network was computed value by value")

    expected = [Permutation(size, seed=3, passed=0, era=1)(np.arange(size)).tolist() for size in range(65)]
    for name in ("_encipher", "_decipher", "_walk"):
        monkeypatch.setattr(Permutation, name, walked)
    for size, items in enumerate(expected):
        order = Permutation(size, seed=3, passed=0, era=1)
        assert [int(order(np.array([position]))[0]) for position in range(size)] == items
        assert order.inverse(np.array(items, np.int64)).tolist() == list(range(size))


@given(st.integers(1, 5000), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9))
def test_the_inverse_leads_back(size: int, seed: int, passed: int) -> None:
    permutation = Permutation(size, seed=seed, passed=passed, era=3)
    positions = np.arange(size)
    assert permutation.inverse(permutation(positions)).tolist() == positions.tolist()
