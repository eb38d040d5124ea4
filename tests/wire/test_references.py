"""References of open blocks: their bytes, and what is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.wire.pieces import NO_BLOCKS, REFERENCE, join_references, split_references

rows = st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1)
)
blocks = st.lists(st.lists(rows, min_size=1, max_size=4), max_size=5)


@given(blocks)
def test_references_survive_the_wire(opened: list[list[tuple[int, int, int, int]]]) -> None:
    flat = [row for block in opened for row in block]
    data = join_references([len(block) for block in opened], np.array(flat, REFERENCE))
    found = split_references(data)
    assert (list(found.counts), found.rows.tolist()) == ([len(block) for block in opened], flat)
    assert found.tokens == sum(row[2] for row in flat)
    assert (data == NO_BLOCKS) == (not opened)
    if flat:
        assert found.oldest == min(row[0] for row in flat)


@given(blocks.filter(bool), st.data())
def test_bytes_that_are_none_are_refused(opened: list[list[tuple[int, int, int, int]]], data: st.DataObject) -> None:
    whole = join_references(list(map(len, opened)), np.array([row for block in opened for row in block], REFERENCE))
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    for wrong in (cut, whole + b"\0"):
        with pytest.raises(ValueError, match="references"):
            split_references(wrong)


def test_what_means_nothing_is_refused() -> None:
    piece = np.array([(1, 0, 0, 5)], REFERENCE).tobytes()
    for wrong in (bytes(4), b"\1\0\0\0" + bytes(4), b"\1\0\0\0\1\0\0\0" + piece):
        with pytest.raises(ValueError, match="reference"):
            split_references(wrong)
