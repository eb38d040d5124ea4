"""Block rows: what a store remembers of each block beside its bytes.

A row is 32 bytes, little-endian: where the block's entry ends in the document table, the CRC-32 of its tokens and of
its entry, and the chain hash after it. Commit records carry the rows of the blocks that they commit; the ``.index`` of
a sealed segment is the rows of all its blocks.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

BLOCK_ROW: Final = np.dtype([("docs_end", "<u8"), ("tokens_crc", "<u4"), ("entry_crc", "<u4"), ("chain", "V16")])

Rows: TypeAlias = npt.NDArray[np.void]
"""One `BLOCK_ROW` per block."""


def make_rows(tokens: memoryview, entries: Sequence[bytes], chains: Sequence[bytes], docs_bytes: int) -> Rows:
    """Return the rows of the blocks whose tokens are back to back in ``tokens``.

    ``docs_bytes`` is the length of the document table before their entries.
    """
    rows = np.empty(len(entries), BLOCK_ROW)
    size = len(tokens) // max(len(entries), 1)
    rows["docs_end"] = docs_bytes + np.cumsum(np.fromiter(map(len, entries), np.uint64, len(entries)))
    rows["tokens_crc"] = [crc32(tokens[number * size : (number + 1) * size]) for number in range(len(entries))]
    rows["entry_crc"] = [crc32(entry) for entry in entries]
    rows["chain"] = np.frombuffer(b"".join(chains), "V16")
    return rows


def entry_span(rows: Rows, number: int) -> tuple[int, int]:
    """Return where the entry of the segment's block ``number`` (counted from 0) begins and ends in its table."""
    start = int(rows["docs_end"][number - 1]) if number else 0
    return start, int(rows["docs_end"][number])


def chain_after(rows: Rows, number: int) -> bytes:
    """Return the chain hash after the segment's block ``number`` (counted from 0)."""
    return bytes(rows["chain"][number].tobytes())
