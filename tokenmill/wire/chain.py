"""The hash that rolls along a chain: two logs with the same hash after block k hold the same blocks 0 to k.

It finds divergence (lost and rewritten tails, changed settings, a library that gives other ids); it is no signature.
xxh3_128 (https://xxhash.com) in its canonical big-endian digest.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import xxhash

HASH_BYTES: Final = 16
_PARTITION: Final = Struct("<I")


def genesis_hash(fingerprint: bytes, partition: int) -> bytes:
    """Return the hash before block 0 of the chain of ``partition`` under this fingerprint (16 bytes)."""
    return xxhash.xxh3_128_digest(b"tokenmill chain 1" + fingerprint + _PARTITION.pack(partition))


def next_hash(before: bytes, tokens: bytes | memoryview, entry: bytes) -> bytes:
    """Return the hash after one block: its tokens as they are on disk, then its entry (`tokenmill.wire.pieces`)."""
    state = xxhash.xxh3_128(before)
    state.update(tokens)
    state.update(entry)
    return state.digest()


def roll(before: bytes, tokens: bytes | memoryview, entries: Sequence[bytes]) -> list[bytes]:
    """Return the hash after each of ``len(entries)`` blocks whose tokens are back to back in ``tokens``."""
    if not entries:
        return []
    view, at = memoryview(tokens), 0
    size = len(view) // len(entries)
    hashes, state = [], xxhash.xxh3_128()
    for entry in entries:  # the same as `next_hash`, with less work for each block
        state.reset()
        state.update(before)
        state.update(view[at : at + size])
        state.update(entry)
        before = state.digest()
        hashes.append(before)
        at += size
    return hashes
