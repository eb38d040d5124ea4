"""A fetch in columns: offsets, sizes, and the parts in which it is worked on."""

from itertools import pairwise
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import record_lists
from tokenmill.milling import fetch
from tokenmill.milling.fetch import Fetch
from tokenmill.records import Record


@given(record_lists(), st.integers(0, 50))
def test_a_fetch_knows_where_an_offset_lies(records: list[Record], offset: int) -> None:
    """As many records lie below it as there are with smaller offsets, gaps or not."""
    found = Fetch.of(records)
    assert found.index(offset) == sum(record.offset < offset for record in records)
    assert found.offsets.tolist() == [record.offset for record in records]
    assert found.sizes.tolist() == [len(record.value or b"") for record in records]


@given(record_lists(), st.integers(1, 5), st.integers(0, 40))
def test_parts_are_bounded_and_leave_no_record_out(records: list[Record], most: int, size: int) -> None:
    """By their records and by the bytes of their values; a larger record stands alone, and no part could be longer."""
    with patch.object(fetch, "PART_RECORDS", most), patch.object(fetch, "PART_BYTES", size):
        parts = list(Fetch.of(records).parts())
    assert [low for low, _ in parts] + [len(records)] == [0, *(high for _, high in parts)]
    sizes = [len(record.value or b"") for record in records]
    for low, high in parts:
        assert 1 <= high - low <= most
        assert sum(sizes[low:high]) <= size or high - low == 1
    for (low, high), _ in pairwise(parts):
        assert high - low == most or sum(sizes[low : high + 1]) > size
