"""What a packing makes of a document by itself, before blocks: whether it is dropped, and the ids that it gives.

``concat`` and ``fit`` take each document as it is, between the ids of the frame. ``rows`` and ``chunks`` divide it into
*parts*, one for each of its blocks; the ids that it gives are those of its parts, one after the other, and ids that are
in no part are left out (`SeparatePacking` makes blocks of them). Works on whole batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.packings import Chunks, Rows, packing_of
from tokenmill.recipe import Recipe
from tokenmill.wire.pieces import ENTRY_HEADER, NO_BLOCKS, PADDING, PIECE

from ..document_columns import Integers, numbered
from ..outcomes import NO_TOKENS, NO_TOKENS_DETAIL
from ..tokenizers import TokenBatch
from .packed_blocks import Array, PackedBlocks, Stretches, TokenizedDocuments

TOO_LONG: Final = "too_long"
"""A filter's reason: a document has more tokens than a row, and such are dropped."""
TOO_SHORT: Final = "too_short"
"""A filter's reason: a document fills no row or chunk, and such are dropped."""
DETAILS: Final = {
    NO_TOKENS: NO_TOKENS_DETAIL,
    TOO_LONG: "it has more tokens than a row",
    TOO_SHORT: "it has fewer tokens than a row or chunk",
}


class GivenTokens(NamedTuple):
    """The ids that documents give to blocks."""

    tokens: Array
    """In the stream's dtype, one document after the other."""
    bounds: Integers
    """Shape ``[documents + 1]``: where each document's begin, and where the last one's end."""
    left_out: Integers | None = None
    """Shape ``[documents]``: how many ids of each are in no block; None where that never happens."""


def chosen(batch: TokenBatch, choice: npt.NDArray[np.bool_]) -> TokenBatch:
    """Return the ids of the texts for which ``choice`` is true, and no failures."""
    lengths = np.diff(batch.offsets)
    bounds = np.append(0, np.cumsum(lengths[choice]))
    return TokenBatch(batch.ids if bounds[-1] == len(batch.ids) else batch.ids[np.repeat(choice, lengths)], bounds)


class Frame(NamedTuple):
    """The ids around each text."""

    before: Sequence[int]
    after: Sequence[int]
    dtype: np.dtype[np.unsignedinteger]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.before) + len(self.after)

    def around(self, ids: npt.NDArray[np.unsignedinteger], bounds: Integers) -> tuple[Array, Integers]:
        """Return the ids of texts with the frame around each, and the bounds of these."""
        before, after = self.before, self.after
        framed = bounds + np.arange(len(bounds)) * self.size
        tokens = np.empty(framed[-1], self.dtype)
        from_texts = np.ones(len(tokens), np.bool_)
        places = [framed[:-1] + at for at in range(len(before))] + [framed[1:] - at for at in range(len(after), 0, -1)]
        for place, number in zip(places, (*before, *after), strict=True):
            from_texts[place] = False
            tokens[place] = number
        tokens[from_texts] = ids
        return tokens, framed


@dataclass(frozen=True, slots=True)
class DocumentShape:
    """What a packing makes of documents by their ids alone; as it is here, it takes each as it is."""

    frame: Frame

    def refused(self, lengths: Integers) -> npt.NDArray[Any]:
        """Return for each text of so many ids why it is filtered out; an empty text where it is not."""
        return np.full(len(lengths), "", "<U16")

    def give(self, batch: TokenBatch) -> GivenTokens:
        """Return what documents with these ids of texts give, none of which is filtered out."""
        return GivenTokens(*self.frame.around(batch.ids, batch.offsets))


@dataclass(frozen=True, slots=True)
class RowsShape(DocumentShape):
    """Rows of at most ``row_tokens`` ids, each with the frame around a part of the text."""

    packing: Rows
    row_tokens: int

    @property
    def step(self) -> int:
        """How many ids of a text fit a row; the next row begins with those after them."""
        return self.row_tokens - self.frame.size

    def refused(self, lengths: Integers) -> npt.NDArray[Any]:
        """Return why texts are dropped that do not fit, or fill no row."""
        reasons = DocumentShape.refused(self, lengths)
        if self.packing.long == "drop":
            reasons[lengths > self.step] = TOO_LONG
        if self.packing.short == "drop":
            reasons[lengths < self.step] = TOO_SHORT
        return reasons

    def give(self, batch: TokenBatch) -> GivenTokens:
        """Return the ids of all rows, with the frame in each."""
        lengths = np.diff(batch.offsets)
        rows = np.ones_like(lengths)
        if self.packing.long == "split":
            rows = lengths // self.step if self.packing.short == "drop" else -(-lengths // self.step)
        kept = np.minimum(lengths, rows * self.step)
        owners, numbers = numbered(rows)
        sizes = np.minimum(kept[owners] - numbers * self.step, self.step)
        ids: npt.NDArray[np.unsignedinteger] = batch.ids
        if not np.array_equal(kept, lengths):
            runs = np.stack([kept, lengths - kept], axis=1).ravel()
            ids = ids[np.repeat(np.tile([True, False], len(kept)), runs)]  # the first ``kept`` of each text
        tokens, row_bounds = self.frame.around(ids, np.append(0, np.cumsum(sizes)))
        return GivenTokens(tokens, row_bounds[np.append(0, np.cumsum(rows))], lengths - kept)


@dataclass(frozen=True, slots=True)
class ChunksShape(DocumentShape):
    """Chunks of the framed document, each with one id more, with which the next one begins."""

    packing: Chunks

    @property
    def step(self) -> int:
        """How far each chunk begins behind the one before."""
        return self.packing.chunk_tokens

    def refused(self, lengths: Integers) -> npt.NDArray[Any]:
        """Return why texts are dropped that fill no chunk."""
        reasons = DocumentShape.refused(self, lengths)
        if self.packing.rest == "drop":
            reasons[lengths + self.frame.size <= self.packing.chunk_tokens] = TOO_SHORT
        return reasons

    def give(self, batch: TokenBatch) -> GivenTokens:
        """Return the ids of all chunks."""
        size = self.step
        tokens, bounds = self.frame.around(batch.ids, batch.offsets)
        lengths = np.diff(bounds)
        chunks = (lengths - 1) // size if self.packing.rest == "drop" else np.maximum(-((1 - lengths) // size), 1)
        owners, numbers = numbered(chunks)
        starts = bounds[owners] + numbers * size
        sizes = np.minimum(size + 1, bounds[owners + 1] - starts)
        parts = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        given = np.concatenate([tokens[:0], *(tokens[start:stop] for start, stop in parts)])
        chunk_bounds = np.append(0, np.cumsum(sizes))
        left_out = np.maximum(lengths - 1 - chunks * size, 0)
        return GivenTokens(given, chunk_bounds[np.append(0, np.cumsum(chunks))], left_out)


def document_shape(recipe: Recipe) -> DocumentShape:
    """Return what the recipe's packing makes of a document."""
    packing = packing_of(recipe)
    frame = Frame(recipe.begin_of_document, recipe.after, recipe.token_dtype)
    if isinstance(packing, Rows):
        return RowsShape(frame, packing, recipe.block_tokens)
    return ChunksShape(frame, packing) if isinstance(packing, Chunks) else DocumentShape(frame)


def filtered_out(shape: DocumentShape, batch: TokenBatch) -> list[tuple[int, str]]:
    """Return the indices of the texts that are filtered out for their ids, ascending, each with the reason."""
    lengths = np.diff(batch.offsets)
    reasons = shape.refused(lengths)
    reasons[batch.silent] = NO_TOKENS
    reasons[list(batch.failed)] = ""
    found = np.flatnonzero(reasons != "")
    return list(zip(found.tolist(), reasons[found].tolist(), strict=True))


_ENTRY: Final = np.dtype([("pieces", "<u4"), ("meta_total", "<u4"), ("rows", PIECE, 2)])
"""An entry with room for a piece of padding, without metas."""


class SeparatePacking:
    """Each document in blocks of its own (``rows`` and ``chunks``): what it gives is cut, the last block padded.

    Nothing waits between two documents: there is no open block, and a flush has nothing to fill.
    """

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
        owners, numbers = numbered(counts)
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
