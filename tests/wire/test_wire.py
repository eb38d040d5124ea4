"""What is on the wire: chain hashes and cursors, entries and references, totals and figures, and messages of them."""

import struct
import zlib
from collections import Counter
from dataclasses import fields, replace
from itertools import accumulate

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import FINGERPRINT, make_history
from tests.mills import RECIPE, make_source, text, write
from tests.strategies import cursors, figures, pieces, totals
from tokenmill.errors import DamagedError
from tokenmill.recipe import canonical_json
from tokenmill.wire.chain import HASH_BYTES, Cursor, genesis_hash, next_hash, record_crc, roll
from tokenmill.wire.message import HEADER_OVERHEAD, MAGIC, Message, decode_message, encode_header
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
from tokenmill.wire.totals import Amount, Figures, StepFigures, Totals

SIZE = 4
hashed_blocks = st.lists(st.tuples(st.binary(min_size=SIZE, max_size=SIZE), st.binary(max_size=9)), max_size=5)


def test_the_first_hash_is_of_fingerprint_and_partition() -> None:
    expected = xxhash.xxh3_128(b"tokenmill chain 1" + bytes(range(16)) + b"\x03\0\0\0").digest()
    assert genesis_hash(bytes(range(16)), 3) == expected
    assert len(expected) == HASH_BYTES
    # Streams and partitions begin differently, so a message on the wrong partition continues nothing.
    starts = {genesis_hash(fingerprint, partition) for fingerprint in (b"a" * 16, b"b" * 16) for partition in range(3)}
    assert len(starts) == 6


@given(st.binary(min_size=16, max_size=16), hashed_blocks)
def test_rolling_is_hashing_block_after_block(before: bytes, found: list[tuple[bytes, bytes]]) -> None:
    tokens = b"".join(block for block, _ in found)
    hashes = roll(before, tokens, [entry for _, entry in found])
    assert hashes == roll(before, memoryview(tokens), [entry for _, entry in found])
    for (block, entry), after in zip(found, hashes, strict=True):
        assert next_hash(before, block, entry) == xxhash.xxh3_128_digest(before + block + entry) == after
        before = after


@given(hashed_blocks.filter(bool), st.data())
def test_any_difference_in_a_block_shows_in_all_later_hashes(
    found: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    tokens, entries = b"".join(block for block, _ in found), [entry for _, entry in found]
    place = data.draw(st.integers(0, len(found) - 1))
    start = bytes(HASH_BYTES)
    other_tokens = bytearray(tokens)
    other_tokens[place * SIZE] ^= 1
    other_entries = [entry + b"\0" * (n == place) for n, entry in enumerate(entries)]
    truth = roll(start, tokens, entries)
    for other in (roll(start, bytes(other_tokens), entries), roll(start, tokens, other_entries)):
        assert other[:place] == truth[:place]
        assert not set(other[place:]) & set(truth[place:])


@given(cursors)
def test_a_cursor_survives_its_bytes(cursor: Cursor) -> None:
    packed = cursor.pack()
    assert len(packed) == 44
    assert Cursor.unpack(packed) == Cursor.unpack(memoryview(packed)) == cursor
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


@given(totals)
def test_totals_survive_their_bytes(total: Totals) -> None:
    again = Totals.unpack(total.pack())
    assert again == Totals.unpack(memoryview(total.pack()))
    assert again.to_dict() == total.to_dict()
    spelled = replace(total, filtered=Counter({**total.filtered, "other": 0}))
    assert again.pack() == spelled.pack() == total.pack()


@given(totals, totals)
def test_sums_are_over_every_count(one: Totals, other: Totals) -> None:
    before = one.copy(), other.copy()
    total = one + other
    for name in (field.name for field in fields(Totals)):
        mine, theirs, both = (getattr(t, name) for t in (one, other, total))
        if isinstance(both, Figures):
            assert both == mine + theirs
        elif isinstance(both, Counter):
            assert +both == Counter({reason: mine[reason] + theirs[reason] for reason in mine | theirs if both[reason]})
        else:
            assert both == mine + theirs
    assert (one, other) == before


@given(totals)
def test_a_copy_lives_on_its_own(total: Totals) -> None:
    copy = total.copy()
    assert copy.to_dict() == total.to_dict()
    total.figures.step("new").filtered["new"] = Amount(1, 1)
    assert all(step.step != "new" for step in copy.figures.steps)
    total.filtered["new"] += 1
    total.dead_lettered["new"] += 1
    total.records += 1
    assert copy.filtered["new"] == copy.dead_lettered["new"] == 0
    assert copy.records == total.records - 1


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), totals)
def test_totals_balance_when_every_record_has_one_outcome(
    kept: int, tombstones: int, flushes: int, other: int, reasons: Totals
) -> None:
    reasons.figures = Figures()
    filtered, dead = reasons.filtered, reasons.dead_lettered
    records = kept + tombstones + flushes + other + filtered.total() + dead.total()
    total = Totals(records, kept, tombstones, flushes, other, filtered, dead)
    assert total.balanced
    for name in ("kept", "tombstones", "flushes", "other_split", "records"):
        assert not replace(total, **{name: getattr(total, name) + 1}).balanced
    total.dead_lettered["x"] += 1
    assert not total.balanced


def test_bytes_of_totals_are_canonical_json() -> None:
    total = Totals(3, 1, 0, 0, 0, Counter(empty=1), Counter(too_large=1, skipped=0), 5, 4)
    assert total.pack() == (
        b'{"dead_lettered":{"too_large":1},"filtered":{"empty":1},"flushes":0,"kept":1,"other_split":0,"records":3,'
        b'"tokens":5,"tombstones":0,"value_bytes":4}'
    )


@pytest.mark.parametrize(
    "data",
    [
        *(b'{"surprise":1}', b"[]", b"1", b"null", b'{"filtered":7}', b'{"figures":{}}', b'{"figures":[]}'),
        b'{"figures":{"bytes":[],"languages":{},"steps":[{"step":"x"}],"tokens":[]}}',
        b'{"figures":{"bytes":[],"languages":{"en":[1,2,3]},"steps":[],"tokens":[]}}',
    ],
)
def test_what_is_no_totals_is_refused(data: bytes) -> None:
    with pytest.raises(TypeError):
        Totals.unpack(data)


@given(figures, figures)
def test_sums_forget_nothing_and_change_no_summand(one: Figures, other: Figures) -> None:
    before = canonical_json(one.to_dict()), canonical_json(other.to_dict())
    total, swapped = one + other, other + one
    for name in {step.step for step in [*one.steps, *other.steps]}:
        found = [f.step(name) for f in (Figures.from_dict(one.to_dict()), Figures.from_dict(other.to_dict()), total)]
        mine, theirs, both = found
        assert both.taken == mine.taken.plus(theirs.taken)
        assert both.passed == mine.passed.plus(theirs.passed)
        assert both.refused == mine.refused.plus(theirs.refused)
        assert both.dropped == mine.dropped.plus(theirs.dropped)
        assert both.to_dict() == swapped.step(name).to_dict()
    for lengths in ("token_lengths", "text_lengths"):
        assert getattr(total, lengths).total() == getattr(one, lengths).total() + getattr(other, lengths).total()
    assert total.languages.keys() == {*one.languages, *other.languages}
    assert [step.step for step in total.steps][: len(one.steps)] == [step.step for step in one.steps]
    assert (canonical_json(one.to_dict()), canonical_json(other.to_dict())) == before


@given(figures)
def test_figures_survive_their_bytes(found: Figures) -> None:
    again = Figures.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert bool(again) == bool(found)


def test_bytes_of_figures_are_canonical_json() -> None:
    """Lengths are lists that begin at one token and end with the longest; amounts are documents and size."""
    step = StepFigures("regex", Amount(3, 30), Amount(2, 25), {"regex.matched": Amount(1, 5), "never": Amount()})
    found = Figures([step], languages={"de": Amount(2, 11)})
    found.token_lengths[2] += 2
    found.text_lengths[0] += 1
    found.text_lengths[3] += 1
    assert canonical_json(found.to_dict()) == (
        b'{"bytes":[1,0,0,1],"languages":{"de":[2,11]},"steps":[{"dead_lettered":[0,0],'
        b'"filtered":{"regex.matched":[1,5]},"in":[3,30],"out":[2,25],"step":"regex"}],"tokens":[0,0,2]}'
    )


def test_lengths_beyond_any_integer_are_refused() -> None:
    values = {"steps": [], "tokens": [0] * 65, "bytes": [], "languages": {}}
    with pytest.raises(ValueError, match="64 powers of two, not of 65"):
        Figures.from_dict(values)


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
