"""Each document in blocks of its own (``rows`` and ``chunks``): what it gives is cut into blocks, the last one padded.

Nothing waits between two documents: there is no open block, and a flush has nothing to fill.
"""

import numpy as np
import numpy.typing as npt

from tokenmill.milling.packing import PackedBlocks, Stretches, TokenizedDocuments
from tokenmill.wire.pieces import ENTRY_HEADER, PADDING, PIECE

Integers = npt.NDArray[np.int64]


class SeparatePacking:
    """The packings ``rows`` and ``chunks``; see the module's docstring."""

    def __init__(self, block_tokens: int, dtype: np.dtype[np.unsignedinteger], padding: int, *, step: int) -> None:
        """Cut blocks; each is ``step`` tokens further on in its document than the one before."""
        self._block_tokens = block_tokens
        self._dtype = dtype
        self._padding = padding
        self._step = step

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """Both empty: no block is ever open."""
        return b"", b""

    @property
    def open_tokens(self) -> int:
        """None."""
        return 0

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
            self._padded(documents.tokens.between(int(starts[0]), int(ends[-1])), sizes),
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

    def _padded(self, tokens: Stretches, sizes: Integers) -> Stretches:
        """Return the tokens with padding behind those of each block that has fewer than it holds."""
        size = self._block_tokens
        if len(tokens) == len(sizes) * size:
            return tokens
        blocks = np.full((len(sizes), size), self._padding, self._dtype)
        blocks[np.arange(size) < sizes[:, np.newaxis]] = np.concatenate(list(tokens))
        return Stretches([blocks.ravel()])

    def _entries(
        self, documents: TokenizedDocuments, owners: Integers, numbers: Integers, sizes: Integers
    ) -> list[bytes]:
        """Return the entry of each block: a piece of its document and, where it is padded, one of padding."""
        metas = documents.metas
        rows = np.zeros((len(owners), 2), PIECE)
        rows["offset"] = documents.offsets[owners][:, np.newaxis]
        rows["position"][:, 0] = numbers * self._step
        rows["meta_bytes"][:, 0] = np.diff(metas.bounds)[owners]
        rows["start"][:, 1] = sizes
        rows["position"][:, 1] = PADDING
        pieces = np.where(sizes < self._block_tokens, 2, 1)
        heads = np.stack([pieces, np.diff(metas.bounds)[owners]], axis=1).astype("<u4").tobytes()
        data, texts, row, head = rows.tobytes(), metas.data, 2 * PIECE.itemsize, ENTRY_HEADER.size
        begins, ends = metas.bounds[owners].tolist(), metas.bounds[owners + 1].tolist()
        used = (pieces * PIECE.itemsize).tolist()
        places = zip(range(0, len(heads), head), range(0, len(data), row), used, begins, ends, strict=True)
        return [
            heads[at : at + head] + data[low : low + length] + texts[begin:end]
            for at, low, length, begin, end in places
        ]


_NO_BLOCKS = PackedBlocks(Stretches([]), [], [], [], [])
