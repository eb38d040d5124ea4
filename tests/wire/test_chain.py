"""The chain hash: what it is made of, and that it notices every difference."""

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.wire.chain import HASH_BYTES, genesis_hash, next_hash, roll

SIZE = 4
blocks = st.lists(st.tuples(st.binary(min_size=SIZE, max_size=SIZE), st.binary(max_size=9)), max_size=5)


def test_the_first_hash_is_of_fingerprint_and_partition() -> None:
    expected = xxhash.xxh3_128(b"tokenmill chain 1" + bytes(range(16)) + b"\x03\0\0\0").digest()
    assert genesis_hash(bytes(range(16)), 3) == expected
    assert len(expected) == HASH_BYTES


def test_streams_and_partitions_begin_differently() -> None:
    """So a message on the wrong partition continues nothing."""
    starts = {genesis_hash(fingerprint, partition) for fingerprint in (b"a" * 16, b"b" * 16) for partition in range(3)}
    assert len(starts) == len((b"a", b"b")) * 3


@given(st.binary(min_size=16, max_size=16), blocks)
def test_rolling_is_hashing_block_after_block(before: bytes, found: list[tuple[bytes, bytes]]) -> None:
    tokens = b"".join(block for block, _ in found)
    hashes = roll(before, tokens, [entry for _, entry in found])
    assert hashes == roll(before, memoryview(tokens), [entry for _, entry in found])
    for (block, entry), after in zip(found, hashes, strict=True):
        assert next_hash(before, block, entry) == xxhash.xxh3_128_digest(before + block + entry) == after
        before = after


@given(blocks.filter(bool), st.data())
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
