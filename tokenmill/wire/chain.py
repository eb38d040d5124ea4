"""A chain: the hash that rolls along it, and the cursor at which it continues.

Two logs with the same hash after block k hold the same blocks 0 to k. The hash, xxh3_128 (https://xxhash.com) in its
canonical big-endian digest, finds divergence (lost and rewritten tails, other settings or ids); it is no signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

import xxhash
from zlib_ng.zlib_ng import crc32

HASH_BYTES: Final = 16
_PARTITION: Final = Struct("<I")
NO_RECORD: Final = -1


def genesis_hash(fingerprint: bytes, partition: int) -> bytes:
    """Return the hash before block 0 of the chain of ``partition`` under this fingerprint (16 bytes)."""
    return xxhash.xxh3_128_digest(b"tokenmill chain 1" + fingerprint + _PARTITION.pack(partition))


def next_hash(before: bytes, tokens: bytes | memoryview, entry: bytes) -> bytes:
    """Return the hash after one block: its tokens as they are on disk, then its entry (`tokenmill.wire.pieces`)."""
    return roll(before, tokens, [entry])[0]


def roll(before: bytes, tokens: bytes | memoryview, entries: Sequence[bytes]) -> list[bytes]:
    """Return the hash after each of ``len(entries)`` blocks whose tokens are back to back in ``tokens``."""
    if not entries:
        return []
    view, at = memoryview(tokens), 0
    size = len(view) // len(entries)
    hashes, state = [], xxhash.xxh3_128()
    for entry in entries:
        state.reset()
        state.update(before)
        state.update(view[at : at + size])
        state.update(entry)
        before = state.digest()
        hashes.append(before)
        at += size
    return hashes


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a chain in its raw partition, and the last record that it passed.

    aiokafka has no topic ids, so this record is how a deleted, recreated or rewritten topic is noticed.
    """

    next_offset: int
    taken: int
    """Tokens of the document at ``next_offset`` that are in blocks already; 0 between documents, and where a document
    or a flush has made no more than other blocks leave."""
    block: int
    last_offset: int = NO_RECORD
    """Offset of the last record that the chain passed or took tokens from; -1 before the first."""
    last_crc: int = 0
    last_timestamp: int = 0

    LAYOUT = Struct("<qqQqIq")

    def pack(self) -> bytes:
        """Return the cursor as 44 bytes, in the order of its fields."""
        return self.LAYOUT.pack(
            self.next_offset, self.taken, self.block, self.last_offset, self.last_crc, self.last_timestamp
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Self:
        """Return the cursor that `pack` made these bytes of."""
        return cls(*cls.LAYOUT.unpack(data))

    @property
    def within(self) -> bool:
        """Whether the chain is in the middle of the record at `next_offset`: it gave tokens, or made a block leave."""
        return self.last_offset >= self.next_offset

    @property
    def place(self) -> tuple[int, int, int]:
        """A sort key: of two cursors of one chain, the further one has the greater place."""
        return (self.block, self.next_offset, self.taken)


def record_crc(key: bytes | None, value: bytes | memoryview | None) -> int:
    """Return the CRC-32 of a source record's key and value, null counting as empty."""
    return crc32(value or b"", crc32(key or b""))
