"""Tokens in several arrays are those of one array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.milling.packing.packed_blocks import Stretches

UINT16 = np.dtype("<u2")
arrays = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=6)


@given(arrays, st.data())
def test_any_part_of_stretches_is_that_part_of_one_array(parts: list[list[int]], data: st.DataObject) -> None:
    """In whichever of the arrays it begins and ends; a part of a part, too."""
    whole = np.array([token for part in parts for token in part], UINT16)
    stretches = Stretches(np.array(part, UINT16) for part in parts)
    for _ in range(2):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        stretches, whole = stretches.between(start, stop), whole[start:stop]
        assert len(stretches) == len(whole)
        assert stretches.tobytes() == whole.tobytes()
        assert [token for array in stretches for token in array.tolist()] == whole.tolist()
        assert all(len(array) for array in stretches)
