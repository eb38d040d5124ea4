"""Consecutive items: their bounds together, and how they are divided."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.milling.bounds import divide, join_bounds

sizes = st.lists(st.integers(0, 9), max_size=8)


@given(st.lists(sizes, max_size=4), st.integers(0, 5))
def test_bounds_of_parts_are_those_of_all_their_items(parts: list[list[int]], begin: int) -> None:
    """Wherever the bounds of a part begin; of no parts, where the first item would."""
    bounds = [np.cumsum([begin, *part], dtype=np.int64) for part in parts]
    assert join_bounds(bounds).tolist() == np.cumsum([0, *(size for part in parts for size in part)]).tolist()


@given(sizes, st.integers(1, 4), st.integers(0, 20))
def test_ranges_are_as_long_as_they_may_be(sizes: list[int], items: int, room: int) -> None:
    """By their items and their sizes; nothing is left out, and what is too large stands alone."""
    ranges = list(divide(np.array(sizes, np.int64), items=items, room=room))
    assert [low for low, _ in ranges] + [len(sizes)] == [0, *(high for _, high in ranges)]
    for low, high in ranges:
        assert 1 <= high - low <= items
        assert sum(sizes[low:high]) <= room or high - low == 1
    for (low, high), _ in pairwise(ranges):
        assert high - low == items or sum(sizes[low : high + 1]) > room
