"""Messages: header and value, there and back, and each kind of damage."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import FINGERPRINT, make_history
from tests.mills import RECIPE, make_source, text, write
from tests.strategies import cursors, pieces, totals
from tokenmill.errors import DamagedError
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import HEADER_OVERHEAD, MAGIC, Message, decode_message, encode_header
from tokenmill.wire.pieces import (
    REFERENCE,
    encode_entry,
    join_references,
)
from tokenmill.wire.totals import Totals

entries = st.lists(pieces, max_size=3).map(encode_entry)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Draw any message: blocks, a carry with an open block, a carry without."""
    is_carry = draw(st.booleans())
    opened = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=2), max_size=3))
    by_value = is_carry and draw(st.booleans())
    count = 0 if is_carry else draw(st.integers(1, 3))
    open_tokens = draw(st.binary(max_size=5)) if is_carry and not opened else b""
    if by_value and opened:
        open_tokens = bytes(2 * sum(map(sum, opened)))
    flat = [(draw(st.integers(0, 9)), 0, tokens, 7) for block in opened for tokens in block]
    size = draw(st.integers(1, 6)) * count
    return Message(
        fingerprint=draw(st.binary(min_size=16, max_size=16)),
        first=draw(st.integers(0, 2**63)),
        cursor=draw(cursors),
        before=draw(st.binary(min_size=16, max_size=16)),
        after=draw(st.binary(min_size=16, max_size=16)),
        totals=draw(totals),
        tokens=draw(st.binary(min_size=size, max_size=size)),
        entries=[draw(entries) for _ in range(count)],
        open_tokens=open_tokens,
        open_entry=b"".join(draw(entries) for _ in range(len(opened) or 1)) if open_tokens else b"",
        references=join_references([len(block) for block in opened], np.array(flat, REFERENCE)),
    )


@given(messages())
def test_a_message_survives_the_wire(message: Message) -> None:
    header = encode_header(message)
    decoded = decode_message(header, bytes(message.tokens))
    assert replace(decoded, tokens=bytes(decoded.tokens)) == message
    assert (decoded.count, decoded.end, decoded.is_carry) == (message.count, message.end, not message.entries)
    if message.is_carry:
        assert decode_message(header, None) == decode_message(header, b"") == decoded


@given(messages(), st.data())
def test_no_changed_byte_of_a_header_goes_unnoticed(message: Message, data: st.DataObject) -> None:
    header = encode_header(message)
    changed = bytearray(header)
    changed[data.draw(st.integers(0, len(header) - 1))] ^= data.draw(st.integers(1, 255))
    cut = header[: data.draw(st.integers(0, len(header) - 1))]
    for wrong in (bytes(changed), cut, header + b"\0"):
        with pytest.raises(DamagedError):
            decode_message(wrong, bytes(message.tokens))


@pytest.mark.parametrize(
    ("span", "value"), [((1, 3), b"1234567"), ((1, 3), None), ((1, 3), b""), ((2, 2), b"1234"), ((0, 3), b"1" * 10)]
)
def test_a_value_that_is_not_as_many_blocks_is_damaged(span: tuple[int, int], value: bytes | None) -> None:
    with pytest.raises(DamagedError, match="bytes of tokens"):
        decode_message(encode_header(make_history(3).message(*span)), value)


def _header(count: int, totals_: bytes, entries_: bytes, open_: bytes, lengths: tuple[int, int, int]) -> bytes:
    fixed = MAGIC + FINGERPRINT + struct.pack("<QI", 0, count) + Cursor(0, 0, 0).pack() + bytes(32)
    header = fixed + struct.pack("<III", *lengths) + totals_ + entries_ + open_
    return header + struct.pack("<I", zlib.crc32(header))


_EMPTY = encode_entry([])


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (0, (b"[]", b"", b"")),
        (0, (b"{", b"", b"")),
        (0, (b"\xff", b"", b"")),
        (0, (b'{"surprise": 1}', b"", b"")),
        (0, (b"{}", _EMPTY, b"")),
        (0, (b"{}", b"", b"ab")),
        (0, (b"{}", _EMPTY[:-1], b"ab")),
        (0, (b"{}", _EMPTY * 2, b"ab")),
        (2, (b"{}", _EMPTY, b"")),
        (1, (b"{}", _EMPTY * 2, b"")),
        (1, (b"{}", _EMPTY, b"ab")),
        (2**32 - 1, (b"{}", _EMPTY, b"")),
    ],
)
def test_a_header_with_a_true_crc_and_wrong_content_is_damaged(count: int, parts: tuple[bytes, bytes, bytes]) -> None:
    totals_, entries_, open_ = parts
    header = _header(count, *parts, (len(totals_), len(entries_), len(open_)))
    with pytest.raises(DamagedError):
        decode_message(header, b"1234" * count if count < 4 else b"1234")


def test_lengths_that_do_not_add_up_are_damaged() -> None:
    for longer in (-1, 1):
        with pytest.raises(DamagedError, match="add up"):
            decode_message(_header(0, b"{}", b"", b"", (2 + longer, 0, 0)), b"")


@pytest.mark.parametrize("header", [b"", b"TMm1", b"TMm3" + bytes(200), b"something else" * 20])
def test_headers_of_others_are_named_as_such(header: bytes) -> None:
    with pytest.raises(DamagedError, match="no header of TokenMill's"):
        decode_message(header, b"")


def test_a_header_is_written_as_its_format_says() -> None:
    (message,) = write(make_source(), RECIPE, [text(7, "abcdefgh")], (), message_bytes=10_000)
    header = encode_header(message)
    layout = "<4s16sQI qqQqIq 16s16sIII".replace(" ", "")
    magic, fingerprint, first, count, *cursor, before, after, a, b, c = struct.unpack_from(layout, header)
    body = header[struct.calcsize(layout) : -4]
    assert (magic, fingerprint, first, count) == (b"TMm1", RECIPE.fingerprint, 0, 2)
    assert cursor == [7, 8, 2, 7, zlib.crc32(b"abcdefgh"), 1007]
    assert (before, after) == (message.before, message.after)
    assert (body[:a], body[a:], c) == (Totals().pack(), b"".join(message.entries), 0)
    assert (a + b, HEADER_OVERHEAD) == (len(body), len(header) - len(body))
    assert struct.unpack("<I", header[-4:])[0] == zlib.crc32(header[:-4])
    tokens = np.frombuffer(message.tokens, RECIPE.dtype).reshape(-1, RECIPE.block_tokens)
    assert tokens.tolist() == [[*b"abcd"], [*b"efgh"]]  # the value: anyone who knows dtype and block length can read it
