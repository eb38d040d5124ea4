"""The cursor: its bytes, its order, and what it remembers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import cursors
from tokenmill.wire.chain import Cursor, record_crc

CURSOR_BYTES = 44


@given(cursors)
def test_a_cursor_survives_its_bytes(cursor: Cursor) -> None:
    packed = cursor.pack()
    assert len(packed) == CURSOR_BYTES
    assert Cursor.unpack(packed) == Cursor.unpack(memoryview(packed)) == cursor


def test_a_cursor_is_written_as_its_format_says() -> None:
    assert Cursor(1, 2, 3, -1, 4, 5).pack().hex(" ", 4) == (
        "01000000 00000000 02000000 00000000 03000000 00000000 ffffffff ffffffff 04000000 05000000 00000000"
    )


@pytest.mark.parametrize(
    ("nearer", "further"),
    [(Cursor(9, 9, 4), Cursor(2, 0, 5)), (Cursor(5, 7, 3), Cursor(6, 0, 3)), (Cursor(5, 6, 3), Cursor(5, 7, 3))],
)
def test_further_cursors_have_greater_places(nearer: Cursor, further: Cursor) -> None:
    """By block, then by offset (a carry went on over records without a block), then within the document."""
    assert nearer.place < further.place


@given(st.none() | st.binary(), st.none() | st.binary())
def test_the_record_crc_is_that_of_key_and_value(key: bytes | None, value: bytes | None) -> None:
    crc = record_crc(key, value)
    assert crc == record_crc(None, (key or b"") + (value or b"")) == record_crc(key, memoryview(value or b""))
    assert crc != record_crc(key, (value or b"") + b"x")
