"""The pieces of many blocks at once, out of a document table that is mapped: one array, without a loop over blocks."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.wire.pieces import ENTRY_HEADER, PIECE

Numbers = npt.NDArray[np.int64]

_ITEM: Final = np.dtype(f"V{PIECE.itemsize}")
"""A piece as bytes, which numpy copies without a look at its fields."""


class Pieces(NamedTuple):
    """The pieces of some blocks, one block's after the other's."""

    counts: Numbers
    """How many pieces each block has, ``[blocks]``; 1 at least."""
    rows: npt.NDArray[np.void]
    """All of them (`tokenmill.wire.pieces.PIECE`), each block's in the order of their starts, ``[pieces]``."""

    def between(self, first: int, stop: int) -> "Pieces":
        """Return the pieces of the blocks ``[first, stop)``."""
        start = int(self.counts[:first].sum())
        return Pieces(self.counts[first:stop], self.rows[start : start + int(self.counts[first:stop].sum())])


class UnreadableEntryError(ValueError):
    """An entry is none, or its pieces cannot be those of a block; ``at`` is its index among those asked for."""

    def __init__(self, at: int) -> None:
        super().__init__(f"entry {at} cannot be read")
        self.at = at


def pieces_in(table: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, block_tokens: int) -> Pieces:
    """Return the pieces of the entries at ``[starts, ends)`` of a document table.

    Raises:
        UnreadableEntryError: the first of these that is no entry, or whose pieces are none of a block's.

    """
    _require(ends - starts >= ENTRY_HEADER.size + PIECE.itemsize)
    numbers = _items(table, np.dtype("<u4"))
    counts, metas = (numbers[at].astype(np.int64) for at in (starts, starts + 4))
    _require((counts > 0) & (ENTRY_HEADER.size + counts * PIECE.itemsize + metas == ends - starts))
    firsts = np.cumsum(counts) - counts
    at = np.repeat(starts + ENTRY_HEADER.size - firsts * PIECE.itemsize, counts)
    at += np.arange(len(at)) * PIECE.itemsize
    rows = _items(table, _ITEM)[at].view(PIECE)
    begins = rows["start"]
    rises = np.empty(len(rows), np.bool_)
    np.greater(begins[1:], begins[:-1], out=rises[1:])
    rises[firsts] = begins[firsts] == 0
    rises &= begins < block_tokens
    if not rises.all():
        raise UnreadableEntryError(int(np.searchsorted(firsts, np.argmin(rises), side="right")) - 1)
    return Pieces(counts, rows)


def metas_in(
    table: npt.NDArray[np.uint8], starts: Numbers, pieces: Pieces, blocks: Numbers, begins: Numbers
) -> tuple[npt.NDArray[np.void], list[bytes]]:
    """Return pieces with their metas: in the entries at ``starts``, which have these ``pieces``.

    Args:
        table: the document table.
        starts: where the entries begin in it.
        pieces: of the entries.
        blocks: of each piece that is wanted, the index of its entry.
        begins: of each, the index of its first token; there is a piece that begins so.

    """
    firsts = np.cumsum(pieces.counts) - pieces.counts
    owners = np.repeat(np.arange(len(pieces.counts)), pieces.counts)
    keys = owners << 32 | pieces.rows["start"].astype(np.int64)
    chosen = np.searchsorted(keys, blocks << 32 | begins)
    stops = np.cumsum(pieces.rows["meta_bytes"], dtype=np.int64)
    behind = np.concatenate([[0], stops[:-1]])
    at = starts + ENTRY_HEADER.size + pieces.counts * PIECE.itemsize - behind[firsts]
    low = (at[blocks] + behind[chosen]).tolist()
    high = (at[blocks] + stops[chosen]).tolist()
    data = table.data
    return pieces.rows[chosen], [bytes(data[start:stop]) for start, stop in zip(low, high, strict=True)]


def join_pieces(parts: Iterable[tuple[Numbers, Pieces]], blocks: int) -> Pieces:
    """Return the pieces of so many blocks, of which each part has those that it names; together they have all."""
    found = list(parts)
    if len(found) == 1 and len(found[0][0]) == blocks:
        where, pieces = found[0]
        if np.array_equal(where, np.arange(blocks)):
            return pieces
    counts = np.empty(blocks, np.int64)
    for where, pieces in found:
        counts[where] = pieces.counts
    firsts = np.cumsum(counts) - counts
    rows = np.empty(int(counts.sum()), PIECE)
    for where, pieces in found:
        mine = np.repeat(firsts[where] - (np.cumsum(pieces.counts) - pieces.counts), pieces.counts)
        rows[mine + np.arange(len(mine))] = pieces.rows
    return Pieces(counts, rows)


def _items(table: npt.NDArray[np.uint8], dtype: "np.dtype[Any]") -> npt.NDArray[Any]:
    """Return the table as items of a dtype, one beginning at each byte."""
    return np.ndarray((max(len(table) - dtype.itemsize + 1, 0),), dtype, table, strides=(1,))


def _require(good: npt.NDArray[np.bool_]) -> None:
    if not good.all():
        raise UnreadableEntryError(int(np.argmin(good)))
