"""Entries: the bytes that say which document wrote what in a block."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import pieces
from tokenmill.wire.pieces import (
    ENTRY_HEADER,
    PADDING,
    PIECE,
    Piece,
    decode_entry,
    encode_entry,
    entry_size,
    split_entries,
)

rows = st.lists(pieces, max_size=5)


def test_an_entry_is_written_as_its_format_says() -> None:
    entry = encode_entry([Piece(0, 7, 3, b'{"id":1}'), Piece(2, 9, PADDING, b"")])
    assert entry.hex(" ", 4) == (
        "02000000 08000000"
        " 00000000 08000000 07000000 00000000 03000000 00000000"
        " 02000000 00000000 09000000 00000000 ffffffff ffffffff"
        " 7b226964 223a317d"
    )


@given(rows)
def test_entries_say_what_they_were_made_of(row: list[Piece]) -> None:
    entry = encode_entry(row)
    assert decode_entry(entry) == decode_entry(memoryview(entry)) == row
    assert entry_size(entry, 0) == len(entry)
    assert len(entry) == ENTRY_HEADER.size + len(row) * PIECE.itemsize + sum(len(piece.meta) for piece in row)


@given(st.lists(rows, max_size=4))
def test_entries_back_to_back_are_cut_apart(blocks: list[list[Piece]]) -> None:
    entries = [encode_entry(row) for row in blocks]
    buffer = b"".join(entries)
    assert split_entries(buffer, len(entries)) == entries
    starts = list(accumulate(map(len, entries), initial=0))
    assert [entry_size(memoryview(buffer), at) for at in starts[:-1]] == [len(entry) for entry in entries]


@given(st.lists(rows, min_size=1, max_size=3), st.data())
def test_cut_off_or_surplus_bytes_are_noticed(blocks: list[list[Piece]], data: st.DataObject) -> None:
    buffer = b"".join(encode_entry(row) for row in blocks)
    short = buffer[: data.draw(st.integers(0, len(buffer) - 1))]
    for wrong in (short, buffer + b"\0"):
        with pytest.raises(ValueError, match="entr"):
            split_entries(wrong, len(blocks))
    with pytest.raises(ValueError, match="entr"):
        split_entries(buffer, len(blocks) - 1)


@given(rows, st.data())
def test_an_entry_that_contradicts_itself_is_refused(row: list[Piece], data: st.DataObject) -> None:
    entry = encode_entry(row)
    count, metas = ENTRY_HEADER.unpack_from(entry)
    wrong = [entry[: data.draw(st.integers(0, len(entry) - 1))], entry + b"\0"]
    wrong.append(ENTRY_HEADER.pack(count, metas + 1) + entry[ENTRY_HEADER.size :] + b"\0")
    for candidate in wrong:
        with pytest.raises(ValueError, match="entry"):
            decode_entry(candidate)
