"""What blocks are made of, in bytes: the document pieces of a block, and open blocks as references to records.

One *entry* per block describes its pieces. An entry travels in a message's header, is appended to a store's document
table, and is hashed into the chain, always as the same bytes. It describes its own block alone, so a message can be cut
at any block::

    u4 pieces | u4 meta_total | pieces x PIECE (24 bytes each) | metas, one after the other

A packing that keeps open blocks holds, for each, the rests of documents in the order in which they were placed. By
value that would be up to 33 MB in every message; a *reference* has 20 bytes. A mill that continues the chain reads the
records again, and compares their CRCs and lengths: a raw log that was rewritten with documents of the same length would
join two histories unnoticed otherwise::

    u4 blocks | blocks x u4 pieces | all pieces x REFERENCE (20 bytes each)

Blocks are in the order in which they were opened, so that of their first pieces' offsets. All integers are
little-endian; there is no padding.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

PIECE: Final = np.dtype([("start", "<u4"), ("meta_bytes", "<u4"), ("offset", "<i8"), ("position", "<i8")])
ENTRY_HEADER: Final = Struct("<II")
PADDING: Final = -1
"""The position of a piece of padding: a flush filled the block up to its end."""
REFERENCE: Final = np.dtype([("offset", "<i8"), ("first", "<u4"), ("tokens", "<u4"), ("crc", "<u4")])
"""Offset of the record; index of the first token among the document's; how many, always up to the document's last one;
`tokenmill.wire.chain.record_crc` of the record."""
_COUNT: Final = Struct("<I")
NO_BLOCKS: Final = b""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one document, or the padding, inside one block."""

    start: int
    """Index in the block of the piece's first token; the piece ends where the next one begins, or at the end."""
    offset: int
    """Offset of the source record in its raw partition; for padding, that of the flush record."""
    position: int
    """Index among the document's tokens of the piece's first token; `PADDING` for padding."""
    meta: bytes
    """Canonical JSON of the document's id and carried fields; empty when it has neither."""


def encode_entry(pieces: Sequence[Piece]) -> bytes:
    """Return the entry of a block with these pieces, in the order of their starts."""
    rows = np.array([(p.start, len(p.meta), p.offset, p.position) for p in pieces], dtype=PIECE)
    return join_entry(rows.tobytes(), b"".join(p.meta for p in pieces))


def join_entry(rows: bytes, metas: bytes) -> bytes:
    """Return the entry of encoded rows (`PIECE`, any number) and their metas, both joined in the same order."""
    return ENTRY_HEADER.pack(len(rows) // PIECE.itemsize, len(metas)) + rows + metas


def entry_size(buffer: bytes | memoryview, at: int) -> int:
    """Return the bytes of the entry that begins at ``at``; raises ValueError where the buffer ends before it does."""
    if len(buffer) - at < ENTRY_HEADER.size:
        raise ValueError(f"an entry at byte {at} needs {ENTRY_HEADER.size} bytes, {len(buffer) - at} are left")
    count, metas = ENTRY_HEADER.unpack_from(buffer, at)
    size = ENTRY_HEADER.size + int(count) * PIECE.itemsize + int(metas)
    if len(buffer) - at < size:
        raise ValueError(f"the entry at byte {at} needs {size} bytes, {len(buffer) - at} are left")
    return size


def split_entries(buffer: bytes | memoryview, count: int) -> list[bytes]:
    """Cut ``count`` consecutive entries out of ``buffer``; raises ValueError unless it holds exactly these."""
    data, at = bytes(buffer), 0
    entries, unpack = [], ENTRY_HEADER.unpack_from
    try:
        for _ in range(count):
            pieces, metas = unpack(data, at)
            end = at + ENTRY_HEADER.size + pieces * PIECE.itemsize + metas
            entries.append(data[at:end])
            at = end
    except struct.error:
        raise ValueError(f"{len(data)} bytes are {len(entries)} entries and a part of one, not {count}") from None
    if at != len(data):
        raise ValueError(f"{count} entries have {at} bytes, not {len(data)}")
    return entries


def decode_entry(entry: bytes | memoryview) -> list[Piece]:
    """Return the pieces of one entry, in the order of their starts; raises ValueError where it is not exactly one."""
    if entry_size(entry, 0) != len(entry):
        raise ValueError("bytes follow the entry")
    count, _ = ENTRY_HEADER.unpack_from(entry, 0)
    rows = np.frombuffer(entry, dtype=PIECE, count=count, offset=ENTRY_HEADER.size)
    at = ENTRY_HEADER.size + rows.nbytes
    pieces = []
    for start, meta_bytes, offset, position in rows.tolist():
        pieces.append(Piece(start, offset, position, bytes(entry[at : at + meta_bytes])))
        at += meta_bytes
    if at != len(entry):
        raise ValueError("the metas do not add up to the entry's length")
    return pieces


class OpenReferences(NamedTuple):
    """What the open blocks hold, decoded."""

    counts: Sequence[int]
    rows: npt.NDArray[np.void]
    """The pieces of all blocks (`REFERENCE`), one block after the other."""

    @property
    def tokens(self) -> int:
        """Tokens in all blocks."""
        return int(self.rows["tokens"].sum(dtype=np.int64))

    @property
    def oldest(self) -> int:
        """The lowest offset that is referred to."""
        return int(self.rows["offset"].min())


def join_references(counts: Sequence[int], rows: npt.NDArray[np.void]) -> bytes:
    """Return the bytes of open blocks with so many pieces each; `NO_BLOCKS` where none is open."""
    if not len(counts):
        return NO_BLOCKS
    return _COUNT.pack(len(counts)) + np.asarray(counts, "<u4").tobytes() + rows.tobytes()


def split_references(data: bytes | memoryview) -> OpenReferences:
    """Return what `join_references` made these bytes of; raises ValueError where they are no such bytes."""
    if not len(data):
        return OpenReferences([], np.empty(0, REFERENCE))
    if len(data) < _COUNT.size:
        raise ValueError(f"references begin with a number of blocks, not with {len(data)} bytes")
    blocks = int(_COUNT.unpack_from(data)[0])
    start = _COUNT.size * (1 + blocks)
    if blocks < 1 or len(data) < start:
        raise ValueError(f"{len(data)} bytes of references are too few for {blocks} blocks")
    counts = np.frombuffer(data, "<u4", blocks, _COUNT.size).tolist()
    if min(counts) < 1 or start + sum(counts) * REFERENCE.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes of references are not {blocks} blocks of {sum(counts)} pieces")
    rows = np.frombuffer(data, REFERENCE, sum(counts), start)
    if not rows["tokens"].all():
        raise ValueError("a reference is to no token at all")
    return OpenReferences(counts, rows)
