"""Entries of blocks and references of open ones: what they say, and what is refused."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import pieces
from tokenmill.wire.pieces import (
    ENTRY_HEADER,
    NO_BLOCKS,
    PADDING,
    PIECE,
    REFERENCE,
    Piece,
    decode_entry,
    encode_entry,
    entry_size,
    join_references,
    split_entries,
    split_references,
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


@given(st.lists(rows, max_size=4))
def test_entries_say_what_they_were_made_of_and_are_cut_apart(blocks: list[list[Piece]]) -> None:
    entries = [encode_entry(row) for row in blocks]
    for row, entry in zip(blocks, entries, strict=True):
        assert decode_entry(entry) == decode_entry(memoryview(entry)) == row
        assert entry_size(entry, 0) == len(entry)
        assert len(entry) == ENTRY_HEADER.size + len(row) * PIECE.itemsize + sum(len(piece.meta) for piece in row)
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


opened_blocks = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1)
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=5,
)


@given(opened_blocks)
def test_references_survive_the_wire(opened: list[list[tuple[int, int, int, int]]]) -> None:
    flat = [row for block in opened for row in block]
    data = join_references([len(block) for block in opened], np.array(flat, REFERENCE))
    found = split_references(data)
    assert (list(found.counts), found.rows.tolist()) == ([len(block) for block in opened], flat)
    assert found.tokens == sum(row[2] for row in flat)
    assert (data == NO_BLOCKS) == (not opened)
    if flat:
        assert found.oldest == min(row[0] for row in flat)


@given(opened_blocks.filter(bool), st.data())
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
