"""Copying rows from many arrays at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.consumers.sample_lookup import Gathering, addresses_of
from tokenmill.store import MapWatch

DTYPES = ["uint8", "<u2", "<u4"]


@given(st.sampled_from(DTYPES), st.integers(1, 9), st.data())
def test_rows_come_from_wherever_they_are(dtype: str, columns: int, data: st.DataObject) -> None:
    arrays = [
        np.random.default_rng(number).integers(0, 256, (blocks, columns + number)).astype(dtype)
        for number, blocks in enumerate(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    ]
    place = st.integers(0, len(arrays) - 1).flatmap(
        lambda number: st.tuples(st.just(number), st.integers(0, arrays[number].size - columns))
    )
    wanted = data.draw(st.lists(place, max_size=30))
    addresses = np.array([addresses_of(arrays[number], np.array([start]))[0] for number, start in wanted], np.int64)
    gathering = Gathering(addresses, columns, np.dtype(dtype), arrays, MapWatch())
    cut = data.draw(st.integers(0, len(wanted)))
    rows = np.concatenate([gathering.rows(0, cut), gathering.rows(cut)])
    assert rows.dtype == np.dtype(dtype)
    assert rows.tolist() == [arrays[number].reshape(-1)[start : start + columns].tolist() for number, start in wanted]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_gathered_is_a_copy(dtype: str) -> None:
    tokens = np.arange(12).reshape(3, 4).astype(dtype)
    rows = Gathering(addresses_of(tokens, np.array([8, 0])), 4, tokens.dtype, [tokens], MapWatch()).rows()
    tokens[:] = 0
    rows[0, 0] += 1
    assert rows.tolist() == [[9, 9, 10, 11], [0, 1, 2, 3]]
    assert not np.shares_memory(rows, tokens)
