"""The messages on a token topic: the value is tokens and nothing else; one Kafka header holds the rest.

docs/format.md has the bytes of that header.

A packing with one open block has no references: its carries alone hold the open block, by value. One with several has
them in every message, and a carry holds their tokens and entries as well where the raw log may lose what they refer to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from struct import Struct
from typing import Final

from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, StrayError
from tokenmill.wire.chain import Cursor
from tokenmill.wire.pieces import NO_BLOCKS, split_entries, split_references
from tokenmill.wire.totals import Totals

HEADER_NAME: Final = "tokenmill"
MAGIC: Final = b"TMm1"
MAGIC_WITH_REFERENCES: Final = b"TMm2"
_FIXED: Final = Struct("<4s16sQI44s16s16sIII")
_SIZE: Final = Struct("<I")
_CRC: Final = Struct("<I")

HEADER_OVERHEAD: Final = _FIXED.size + _CRC.size
"""Bytes of a header without totals, entries, open tokens and references."""


@dataclass(frozen=True, slots=True)
class Message:
    """Blocks ``[first, first + count)`` of a chain, or a carry (``count == 0``)."""

    fingerprint: bytes
    first: int
    """In a carry, the number of the next block."""
    cursor: Cursor
    before: bytes
    after: bytes
    """In a carry, ``before`` again."""
    totals: Totals
    tokens: bytes | memoryview
    """``count * block_tokens`` token ids, little-endian; empty in a carry."""
    entries: Sequence[bytes]
    """One per block (`tokenmill.wire.pieces`); empty in a carry."""
    open_tokens: bytes = b""
    """In a carry, the ids of the open blocks so far, little-endian, in the dtype of ``tokens``: of the one that there
    is or, where there are ``references``, of all of them in their order, or of none."""
    open_entry: bytes = b""
    """The open blocks' entries, back to back; empty where ``open_tokens`` is."""
    references: bytes = NO_BLOCKS
    """Of a packing with several open blocks: these blocks after the last block (`tokenmill.wire.pieces`)."""
    chains: Sequence[bytes] = field(default=(), repr=False, compare=False)
    """The hash after each block, as who packed them knows it. Not sent: empty in a message that was read."""

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.entries)

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.entries)

    @property
    def is_carry(self) -> bool:
        """Whether the message holds a position and no block."""
        return not self.entries


def encode_header(message: Message) -> bytes:
    """Return the bytes of the Kafka header `HEADER_NAME` that go with the message's tokens as the value."""
    totals, references = message.totals.pack(), message.references
    entries = b"".join(message.entries) if message.entries else message.open_entry
    fixed = _FIXED.pack(
        MAGIC_WITH_REFERENCES if references else MAGIC,
        message.fingerprint,
        message.first,
        message.count,
        message.cursor.pack(),
        message.before,
        message.after,
        len(totals),
        len(entries),
        len(message.open_tokens),
    )
    size = _SIZE.pack(len(references)) if references else b""
    data = b"".join((fixed, size, totals, entries, message.open_tokens, references))
    return data + _CRC.pack(crc32(data))


def decode_message(header: bytes, value: bytes | memoryview | None) -> Message:
    """Return the message in a header and a value, which is not copied; raises DamagedError where they do not fit."""
    if len(header) < HEADER_OVERHEAD or header[:4] not in {MAGIC, MAGIC_WITH_REFERENCES}:
        raise StrayError("it has no header of TokenMill's, version 1: something else wrote it")
    data = memoryview(header)[: -_CRC.size]
    if crc32(data) != _CRC.unpack_from(header, len(data))[0]:
        raise DamagedError("the header fails its CRC: the message was changed after it was written")
    magic, fingerprint, first, count, cursor, before, after, *sizes = _FIXED.unpack_from(data)
    rest = data[_FIXED.size :]
    if magic == MAGIC_WITH_REFERENCES:
        sizes += _SIZE.unpack_from(rest) if len(rest) >= _SIZE.size else (len(data),)
        rest = rest[_SIZE.size :]
    if sum(sizes) != len(rest):
        raise DamagedError("the header's lengths do not add up: the message was written by another version")
    sizes = [*sizes, 0][:4]
    parts = (rest[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))
    totals_data, entries_data, opened, references = parts
    tokens = value or b""
    try:
        blocks, rows = split_references(references)
        # a carry's header holds an entry for each open block if it holds their tokens
        entries = split_entries(entries_data, count or (len(blocks) or 1) * bool(opened))
        totals = Totals.unpack(totals_data)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"the header holds no valid totals, entries and references: {error}") from error
    if (count and (not tokens or len(tokens) % count)) or (not count and tokens):
        raise DamagedError(f"{len(tokens)} bytes of tokens are not {count} blocks: the value was cut or replaced")
    if count and opened:
        raise DamagedError("the header holds blocks and an open block: the message was written by something else")
    if opened and blocks and len(opened) % int(rows["tokens"].sum(dtype="u8")):
        raise DamagedError("the header's open blocks are not what it refers to: something else wrote the message")
    return Message(
        fingerprint=fingerprint,
        first=first,
        cursor=Cursor.unpack(cursor),
        before=before,
        after=after,
        totals=totals,
        tokens=tokens,
        entries=entries if count else [],
        open_tokens=bytes(opened),
        open_entry=b"" if count else b"".join(entries),
        references=bytes(references),
    )
