"""How often documents came again is what a plain count says, however their duplicates are cut, and in little memory."""

import tracemalloc
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.tools.inspect import duplicates
from tokenmill.app.tools.inspect.duplicates import TimesAgain

PLACES = st.lists(st.tuples(st.sampled_from([0, 1, 1 << 32]), st.integers(0, 9)), max_size=40)
DUPLICATES = 2_000_000


def plainly(times: Mapping[Any, int]) -> list[int]:
    """Return how many came again once, twice, 3 to 4 times, and so on."""
    found = Counter((number - 1).bit_length() for number in times.values())
    return [found[row] for row in range(max(found, default=-1) + 1)]


@given(st.lists(PLACES, max_size=12))
def test_the_histogram_is_that_of_a_plain_count(messages: list[list[tuple[int, int]]]) -> None:
    """Also where what was sorted is sorted together with more, and where nothing came again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "PART", 8)
        again = TimesAgain()
        for places in messages:
            again.add(np.array(places, np.uint64).reshape(len(places), 2))
        wanted = plainly(Counter(place for places in messages for place in places))
        assert again.histogram() == wanted
        assert again.histogram() == wanted


def test_it_takes_the_memory_that_it_says() -> None:
    """Where each duplicate is of another document of one partition, which is the worst."""
    offsets = np.random.default_rng(1).permutation(DUPLICATES).astype(np.uint64)
    tracemalloc.start()
    try:
        again = TimesAgain()
        for part in np.split(offsets, 1000):
            again.add(np.stack([np.full_like(part, 7), part], axis=1))
        assert again.histogram() == [DUPLICATES]
        assert tracemalloc.get_traced_memory()[1] < 100 * DUPLICATES
    finally:
        tracemalloc.stop()
