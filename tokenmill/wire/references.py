"""References: the open blocks of a packing that has several, as the records that their tokens come from.

A packing that keeps open blocks holds, for each, the rests of documents in the order in which they were placed. By
value that would be up to 33 MB in every message; a reference has 20 bytes. Whoever continues the chain reads the
records again, and compares their CRCs and lengths: a raw log that was rewritten with documents of the same length would
join two histories unnoticed otherwise. In bytes, little-endian, without padding::

    u4 blocks | blocks x u4 pieces | all pieces x REFERENCE (20 bytes each)

Blocks are in the order in which they were opened, so that of their first pieces' offsets.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

REFERENCE: Final = np.dtype([("offset", "<i8"), ("first", "<u4"), ("tokens", "<u4"), ("crc", "<u4")])
"""Offset of the record; index of the first token among the document's; how many, always up to the document's last one;
`tokenmill.wire.cursor.record_crc` of the record."""
_COUNT: Final = Struct("<I")
NO_BLOCKS: Final = b""
"""The bytes where no block is open."""


class OpenReferences(NamedTuple):
    """What the open blocks hold, decoded."""

    counts: Sequence[int]
    """How many pieces each block has: at least 1."""
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
    """Return what `join_references` made these bytes of.

    Raises:
        ValueError: they are no such bytes.

    """
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
