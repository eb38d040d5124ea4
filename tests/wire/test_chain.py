"""Chain hashes and cursors: the first hash, rolling, and what a difference does."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import cursors
from tokenmill.wire.chain import HASH_BYTES, Cursor, genesis_hash, next_hash, record_crc, roll

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
