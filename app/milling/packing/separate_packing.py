"""Each document in blocks of its own (``rows`` and ``chunks``): what it gives is cut into blocks, the last one padded.

Nothing waits between two documents: there is no open block, and a flush has nothing to fill.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenmill.wire.pieces import ENTRY_HEADER, NO_BLOCKS, PADDING, PIECE

from .packed_blocks import Array, PackedBlocks, Stretches, TokenizedDocuments

Integers = npt.NDArray[np.int64]
_ENTRY: Final = np.dtype([("pieces", "<u4"), ("meta_total", "<u4"), ("rows", PIECE, 2)])
"""An entry with room for a piece of padding, without metas."""


class SeparatePacking:
    """The packings ``rows`` and ``chunks``; see the module's docstring."""

    open_block: Final = (b"", b"")
    open_tokens: Final = 0
    references: Final = NO_BLOCKS
    """No block is ever open."""

    def __init__(self, block_tokens: int, dtype: np.dtype[np.unsignedinteger], padding: int, *, step: int) -> None:
        """Cut blocks; each is ``step`` tokens further on in its document than the one before."""
        self._block_tokens = block_tokens
        self._pad = np.full(block_tokens, padding, dtype)
        self._step = step

    def add(self, documents: TokenizedDocuments) -> PackedBlocks:
        """Return the blocks of documents, of which the first one may have some already."""
        if not documents:
            return _NO_BLOCKS
        size, ends = self._block_tokens, documents.bounds[1:]
        starts = documents.bounds[:-1].copy()
        starts[0] += documents.taken
        counts = -(-(ends - starts) // size)
        owners = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        is_last = numbers == counts[owners] - 1
        numbers[: counts[0]] += documents.taken // size
        sizes = np.full(len(owners), size)
        sizes[is_last] = ends - starts - (counts - 1) * size
        left_out = np.zeros(len(owners), np.int64)
        if documents.left_out is not None:
            left_out[is_last] = documents.left_out
        return PackedBlocks(
            self._padded(documents.tokens.between(int(starts[0]), int(ends[-1])), ends - starts),
            self._entries(documents, owners, numbers, sizes),
            owners.tolist(),
            np.where(is_last, 0, (numbers + 1) * size).tolist(),
            is_last.tolist(),
            figures={
                "padding": (size - sizes).tolist(),
                "cut": ((numbers == 0) & ~is_last).tolist(),
                "shortened": (left_out > 0).tolist(),
                "left_out": left_out.tolist(),
            },
        )

    def fill(self, offset: int) -> PackedBlocks:  # noqa: ARG002 - the protocol's
        """Return no block: none is open."""
        return _NO_BLOCKS

    def _padded(self, tokens: Stretches, lengths: Integers) -> Stretches:
        """Return the tokens of documents, with padding behind each whose last block is not full."""
        missing = -lengths % self._block_tokens
        if not missing.any():
            return tokens
        one = np.concatenate(list(tokens))
        padded = np.flatnonzero(missing)
        stops = np.cumsum(lengths)[padded].tolist()
        parts: list[Array] = []
        for start, stop, count in zip([0, *stops], [*stops, len(one)], [*missing[padded].tolist(), 0], strict=True):
            parts += one[start:stop], self._pad[:count]
        return Stretches([np.concatenate(parts)])

    def _entries(
        self, documents: TokenizedDocuments, owners: Integers, numbers: Integers, sizes: Integers
    ) -> list[bytes]:
        """Return the entry of each block: a piece of its document and, where it is padded, one of padding."""
        metas = documents.metas
        meta_sizes = np.diff(metas.bounds)[owners]
        found = np.zeros(len(owners), _ENTRY)
        found["pieces"] = np.where(sizes < self._block_tokens, 2, 1)
        found["meta_total"] = meta_sizes
        rows = found["rows"]
        rows["offset"] = documents.offsets[owners][:, np.newaxis]
        rows["position"][:, 0] = numbers * self._step
        rows["meta_bytes"][:, 0] = meta_sizes
        rows["start"][:, 1] = sizes
        rows["position"][:, 1] = PADDING
        data, texts, begins, ends = found.tobytes(), metas.data, metas.bounds[owners], metas.bounds[owners + 1]
        lows = np.arange(len(owners)) * _ENTRY.itemsize
        highs = lows + ENTRY_HEADER.size + found["pieces"] * PIECE.itemsize
        places = zip(lows.tolist(), highs.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return [data[low:high] + texts[begin:end] for low, high, begin, end in places]


_NO_BLOCKS = PackedBlocks(Stretches([]), [], [], [], [])
