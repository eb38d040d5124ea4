"""Concatenate and cut: every token is kept, blocks are full, documents are cut where a block ends.

Works on a whole batch of documents at once: the tokens form one stream that begins with those of the open block, and
block ``b`` is ``stream[b * block_tokens : (b + 1) * block_tokens]``. Pieces are the intersections of documents with
blocks, computed for all documents together.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenmill.packing import Packed, PackedDocument
from tokenmill.pieces import ENTRY_HEADER, PADDING, PIECE, join_entry


class ConcatPacking:
    """The packing ``concat``; see the module's docstring."""

    def __init__(
        self,
        block_tokens: int,
        dtype: np.dtype[np.unsignedinteger],
        end_of_document: int,
        *,
        open_tokens: bytes = b"",
        open_entry: bytes = b"",
    ) -> None:
        """Begin with an empty open block, or with the one that a carry holds."""
        self._block_tokens = block_tokens
        self._dtype = dtype
        self._separator = np.array([end_of_document], dtype=dtype)
        self._tokens = np.frombuffer(open_tokens, dtype=dtype)
        count = ENTRY_HEADER.unpack_from(open_entry)[0] if open_entry else 0
        self._rows = np.frombuffer(open_entry, dtype=PIECE, count=count, offset=ENTRY_HEADER.size if count else 0)
        self._metas = open_entry[ENTRY_HEADER.size + self._rows.nbytes :]

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """The tokens and the entry of the open block so far; both empty when no block is open."""
        if not len(self._tokens):
            return b"", b""
        return self._tokens.tobytes(), join_entry(self._rows, self._metas)

    def add(self, documents: Sequence[PackedDocument]) -> Packed:
        """Append documents, each followed by the end-of-document id; return the blocks that became full."""
        parts = [self._tokens]
        for document in documents:
            parts.append(document.tokens[document.taken :])
            parts.append(self._separator)
        stream = np.concatenate(parts, dtype=self._dtype, casting="unsafe")
        lengths = np.array([len(d.tokens) + 1 - d.taken for d in documents], dtype=np.int64)
        positions = np.array([d.taken for d in documents], dtype=np.int64)
        return self._cut(stream, documents, lengths, positions)

    def fill(self, offset: int) -> Packed:
        """Fill the open block with padding that the flush record at ``offset`` asked for; nothing if it is empty."""
        missing = self._block_tokens - len(self._tokens)
        if missing == self._block_tokens:
            return self._cut(self._tokens, (), np.empty(0, np.int64), np.empty(0, np.int64))
        stream = np.concatenate([self._tokens, np.repeat(self._separator, missing)])
        padding = PackedDocument(offset, stream[:0], b"")
        packed = self._cut(stream, [padding], np.array([missing]), np.array([PADDING]))
        return Packed(packed.tokens, packed.entries, packed.documents, [0])

    def _cut(
        self,
        stream: npt.NDArray[np.unsignedinteger],
        documents: Sequence[PackedDocument],
        lengths: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> Packed:
        """Cut the stream into blocks; keep what is left, tokens and pieces, as the open block."""
        size = self._block_tokens
        blocks = len(stream) // size
        ends = len(self._tokens) + np.cumsum(lengths)
        starts = ends - lengths
        owners, numbers, rows = _pieces(documents, starts, ends, positions, size)
        bounds = np.searchsorted(numbers, np.arange(blocks + 1))
        metas = [documents[owner].meta for owner in owners.tolist()]
        entries = []
        head_rows, head_metas = self._rows, self._metas
        for block in range(blocks):
            low, high = bounds[block], bounds[block + 1]
            block_rows = np.concatenate([head_rows, rows[low:high]]) if len(head_rows) else rows[low:high]
            entries.append(join_entry(block_rows, head_metas + b"".join(metas[low:high])))
            head_rows, head_metas = rows[:0], b""
        last = bounds[blocks]
        self._rows = np.concatenate([head_rows, rows[last:]])
        self._metas = head_metas + b"".join(metas[last:])
        self._tokens = stream[blocks * size :].copy()
        block_ends = np.arange(1, blocks + 1) * size
        last_documents = np.searchsorted(ends, block_ends)
        taken = np.where(
            ends[last_documents] == block_ends, 0, block_ends - starts[last_documents] + positions[last_documents]
        )
        return Packed(stream[: blocks * size].reshape(blocks, size), entries, last_documents.tolist(), taken.tolist())


def _pieces(
    documents: Sequence[PackedDocument],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    size: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Intersect documents ``[starts, ends)`` of the stream with its blocks.

    Returns the index of each piece's document, its block, and its row; ordered by document, so by block as well.
    """
    first_blocks = starts // size
    counts = (ends - 1) // size - first_blocks + 1
    owners = np.repeat(np.arange(len(documents)), counts)
    before = np.cumsum(counts) - counts
    numbers = first_blocks[owners] + np.arange(len(owners)) - before[owners]
    skipped = np.maximum(numbers * size - starts[owners], 0)
    rows = np.empty(len(owners), dtype=PIECE)
    rows["start"] = np.maximum(starts[owners] - numbers * size, 0)
    rows["meta_bytes"] = np.array([len(d.meta) for d in documents], dtype=np.uint32)[owners]
    rows["offset"] = np.array([d.offset for d in documents], dtype=np.int64)[owners]
    rows["position"] = np.where(positions[owners] == PADDING, PADDING, positions[owners] + skipped)
    return owners, numbers, rows
