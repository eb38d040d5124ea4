"""Concatenate and cut: every token is kept, blocks are full, documents are cut where a block ends.

Works on a whole batch of documents at once: the tokens form one stream that begins with those of the open block, and
block ``b`` is ``stream[b * block_tokens : (b + 1) * block_tokens]``. Pieces are the intersections of documents with
blocks, computed for all documents together.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.wire.pieces import ENTRY_HEADER, NO_BLOCKS, PADDING, PIECE, join_entry

from ..document_columns import Metas
from .packed_blocks import PackedBlocks, Stretches, TokenizedDocuments


class ConcatPacking:
    """The packing ``concat``; see the module's docstring."""

    references: Final = NO_BLOCKS
    """None: the open block is short, and carries hold it by value."""

    def __init__(
        self,
        block_tokens: int,
        dtype: np.dtype[np.unsignedinteger],
        padding: int,
        *,
        open_tokens: bytes = b"",
        open_entry: bytes = b"",
    ) -> None:
        """Begin with an empty open block, or with the one that a carry holds."""
        self._block_tokens = block_tokens
        self._padding = np.array([padding], dtype=dtype)
        self._tokens = np.frombuffer(open_tokens, dtype=dtype)
        count = ENTRY_HEADER.unpack_from(open_entry)[0] if open_entry else 0
        self._rows = open_entry[ENTRY_HEADER.size :][: count * PIECE.itemsize]
        self._metas = open_entry[ENTRY_HEADER.size + count * PIECE.itemsize :]

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """The tokens and the entry of the open block so far; both empty when no block is open."""
        if not len(self._tokens):
            return b"", b""
        return self._tokens.tobytes(), join_entry(self._rows, self._metas)

    @property
    def open_tokens(self) -> int:
        """How many tokens the open block has."""
        return len(self._tokens)

    def add(self, documents: TokenizedDocuments) -> PackedBlocks:
        """Append documents; return the blocks that became full."""
        if not documents:
            return self._cut(Stretches([]), _NONE)
        lengths = np.diff(documents.bounds)
        lengths[0] -= documents.taken
        positions = np.zeros(len(lengths), np.int64)
        positions[0] = documents.taken
        new = documents.tokens.between(int(documents.bounds[0]) + documents.taken, int(documents.bounds[-1]))
        return self._cut(new, _StreamPart(documents.offsets, lengths, positions, documents.metas))

    def fill(self, offset: int) -> PackedBlocks:
        """Fill the open block with padding that the flush record at ``offset`` asked for; nothing if it is empty."""
        missing = self._block_tokens - len(self._tokens)
        if missing == self._block_tokens:
            return self._cut(Stretches([]), _NONE)
        padding = _StreamPart(np.array([offset]), np.array([missing]), np.array([PADDING]), Metas.join([b""]))
        packed = self._cut(Stretches([np.repeat(self._padding, missing)]), padding)
        return PackedBlocks(packed.tokens, packed.entries, packed.documents, [0], [True])

    def _cut(self, new: Stretches, run: "_StreamPart") -> PackedBlocks:
        """Cut the stream into blocks; keep what is left, tokens and pieces, as the open block."""
        size, stream = self._block_tokens, Stretches([self._tokens, *new])
        blocks = len(stream) // size
        ends = len(self._tokens) + np.cumsum(run.lengths)
        starts = ends - run.lengths
        entries = self._entries(*_pieces(run, starts, ends, size), run.metas, blocks)
        self._tokens = np.concatenate([self._tokens[:0], *stream.between(blocks * size, len(stream))])
        block_ends = np.arange(1, blocks + 1) * size
        last_documents = np.searchsorted(ends, block_ends)
        whole = ends[last_documents] == block_ends
        taken = np.where(whole, 0, block_ends - starts[last_documents] + run.positions[last_documents])
        places = last_documents.tolist(), taken.tolist(), whole.tolist()
        return PackedBlocks(stream.between(0, blocks * size), entries, *places)

    def _entries(
        self,
        numbers: npt.NDArray[np.int64],
        owners: npt.NDArray[np.int64],
        rows: npt.NDArray[np.void],
        metas: Metas,
        blocks: int,
    ) -> list[bytes]:
        """Return the entries of the full blocks; for the other arguments see `_pieces`.

        A block's pieces are of consecutive documents, so their metas follow one another.
        """
        firsts = np.searchsorted(numbers, np.arange(blocks + 1))
        begins = metas.bounds[np.append(owners, len(metas.bounds) - 1)[firsts]].tolist()
        ends = metas.bounds[owners[firsts[1:] - 1] + 1].tolist()
        heads = np.stack([np.diff(firsts), np.subtract(ends, begins[:-1])], axis=1).astype("<u4").view("V8")[:, 0]
        row_bounds, data, texts = (firsts * PIECE.itemsize).tolist(), rows.tobytes(), metas.data
        parts = zip(heads.tolist(), row_bounds, row_bounds[1:], begins, ends, strict=False)
        entries: list[bytes] = [head + data[low:high] + texts[begin:end] for head, low, high, begin, end in parts]
        if entries:
            entries[0] = join_entry(self._rows + data[: row_bounds[1]], self._metas + texts[begins[0] : ends[0]])
            self._rows = self._metas = b""
        self._rows += data[row_bounds[-1] :]
        self._metas += texts[begins[-1] : metas.bounds[-1]]
        return entries


class _StreamPart(NamedTuple):
    """Stretches of the stream that follow each other, each of one document, or padding."""

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    """In tokens."""
    positions: npt.NDArray[np.int64]
    """Of each stretch's first token among its document's; `PADDING` for padding."""
    metas: Metas


_NONE: Final = _StreamPart(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), Metas.join([]))


def _pieces(
    run: _StreamPart, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Intersect the stretches ``[starts, ends)`` of the stream with its blocks.

    Returns each piece's block, its stretch, and its row; ordered by stretch, so by block as well.
    """
    first_blocks = starts // size
    counts = (ends - 1) // size - first_blocks + 1
    owners = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    numbers = first_blocks[owners] + np.arange(len(owners)) - before[owners]
    skipped = np.maximum(numbers * size - starts[owners], 0)
    positions = run.positions[owners]
    rows = np.empty(len(owners), dtype=PIECE)
    rows["start"] = np.maximum(starts[owners] - numbers * size, 0)
    rows["meta_bytes"] = np.diff(run.metas.bounds)[owners]
    rows["offset"] = run.offsets[owners]
    rows["position"] = np.where(positions == PADDING, PADDING, positions + skipped)
    return numbers, owners, rows
