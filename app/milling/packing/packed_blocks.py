"""Documents on their way into blocks, and the blocks: what every packing promises (`Packing`), and ``concat``.

`ConcatPacking` works on a whole batch of documents at once: the tokens form one stream that begins with those of the
open block, and block ``b`` is ``stream[b * block_tokens : (b + 1) * block_tokens]``. Pieces are the intersections of
documents with blocks, computed for all documents together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.wire.pieces import ENTRY_HEADER, NO_BLOCKS, PADDING, PIECE, join_entry

from ..document_columns import Integers, Metas, join_bounds, numbered

Array = npt.NDArray[np.unsignedinteger]


class Stretches:
    """Consecutive tokens in arrays that do not change: they are copied once, into the message that takes them."""

    __slots__ = ("_arrays", "_size")

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._arrays = [array for array in arrays if len(array)]
        self._size = sum(map(len, self._arrays))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Array]:
        return iter(self._arrays)

    def between(self, start: int, stop: int) -> "Stretches":
        """Return a view of the tokens ``[start, stop)``."""
        views = []
        for array in self._arrays:
            if stop <= 0:
                break
            views.append(array[max(start, 0) : stop])
            start, stop = start - len(array), stop - len(array)
        return Stretches(views)

    def cut(self, starts: Integers, stops: Integers) -> list[memoryview]:
        """Return views of the bytes of the tokens ``[start, stop)`` of each range; none reaches over two arrays."""
        ends = np.cumsum([len(array) for array in self._arrays])
        owners = np.searchsorted(ends, starts, side="right")
        views = [array.data.cast("B") for array in self._arrays]
        item = self._arrays[0].itemsize if views else 1
        shifts = np.append(0, ends)[owners]
        places = zip(
            owners.tolist(), ((starts - shifts) * item).tolist(), ((stops - shifts) * item).tolist(), strict=True
        )
        return [views[owner][start:stop] for owner, start, stop in places]

    def tobytes(self) -> bytes:
        """Return a copy of the tokens as they are on disk."""
        return b"".join([array.data for array in self._arrays])


class ScatteredTokens:
    """Consecutive tokens that are in many small buffers: they are copied once, into the message that takes them."""

    __slots__ = ("_buffers", "_ends", "_item")

    def __init__(self, buffers: Sequence[bytes | memoryview], ends: Integers, item: int) -> None:
        """Take buffers of bytes, the number of the token after each one's last, and the bytes of a token."""
        self._buffers, self._ends, self._item = buffers, ends, item

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def between(self, start: int, stop: int) -> "ScatteredTokens":
        """Return the tokens ``[start, stop)``; both are where a buffer begins or ends."""
        low, high = np.searchsorted(self._ends, (start, stop), side="right").tolist()
        return ScatteredTokens(self._buffers[low:high], self._ends[low:high] - start, self._item)

    def tobytes(self) -> bytes:
        """Return a copy of the tokens as they are on disk."""
        return b"".join(self._buffers)


def _no_crc(_: int) -> int:
    raise LookupError("the records of these documents are not known")


class TokenizedDocuments(NamedTuple):
    """Kept documents on their way into blocks, in columns."""

    offsets: Integers
    """Shape ``[documents]``: offsets of the source records, ascending."""
    tokens: Stretches
    """Token ids in the stream's dtype, each document with the ids before and after its text."""
    bounds: Integers
    """Shape ``[documents + 1]``: document ``n`` has tokens ``bounds[n]`` to ``bounds[n + 1]``."""
    metas: Metas
    """Canonical JSON of each document's id and carried fields, for its pieces."""
    taken: int = 0
    """Tokens of the first document that are in blocks already."""
    crc: Callable[[int], int] = _no_crc
    """Gives the CRC of a document's record (`tokenmill.wire.chain.record_crc`), for packings that refer to records."""
    left_out: Integers | None = None
    """Shape ``[documents]``: ids of each document that no block holds; None in a packing that leaves none out."""

    @classmethod
    def concatenate(cls, parts: Sequence["TokenizedDocuments"]) -> "TokenizedDocuments":
        """Return the documents of all parts, in order; none of them is one that `part` returned."""
        left_out = [part.left_out for part in parts if part.left_out is not None]
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)]),
            Stretches(array for part in parts for array in part.tokens),
            join_bounds(part.bounds for part in parts),
            Metas.concatenate([part.metas for part in parts]),
            left_out=np.concatenate(left_out) if left_out else None,
        )

    def __bool__(self) -> bool:
        return len(self.offsets) > 0

    def part(self, low: int, high: int) -> "TokenizedDocuments":
        """Return a view of documents ``[low, high)``: the tokens of the others stay in its ``tokens``."""
        return TokenizedDocuments(
            self.offsets[low:high],
            self.tokens,
            self.bounds[low : high + 1],
            self.metas.part(low, high),
            left_out=None if self.left_out is None else self.left_out[low:high],
        )


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Blocks that became full, and where each one ended."""

    tokens: Stretches | ScatteredTokens
    """Those of all blocks, one block after the other, in the stream's dtype; views of what was packed."""
    entries: Sequence[bytes]
    """One per block (`tokenmill.wire.pieces`)."""
    documents: Sequence[int]
    """For each block, the index among the added documents of the one that its last token belongs to."""
    taken: Sequence[int]
    """For each block, how many tokens of that document are in blocks now; 0 when the block ends with the document."""
    finished: Sequence[bool]
    """For each block, whether nothing of that document is still to be placed: where not, the chain goes on with it."""
    figures: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """What the totals count of each block (`Totals.packing`), by name."""
    references: Callable[[int], bytes] = lambda _: NO_BLOCKS
    """Gives the blocks that are open right after so many (at least one) of these have left, as references."""

    @property
    def counted(self) -> dict[str, int]:
        """What the totals count of all blocks."""
        return {name: sum(numbers) for name, numbers in self.figures.items()}


class Packing(Protocol):
    """Packs documents in the order of their offsets; the result is independent of how they are divided into calls."""

    def add(self, documents: TokenizedDocuments) -> PackedBlocks:
        """Append documents; return the blocks that became full."""

    def fill(self, offset: int) -> PackedBlocks:
        """Fill the open block with padding that the flush record at ``offset`` asked for; nothing if it is empty."""

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """The tokens and the entries of the open block so far, or of all of them in the order of `references`."""

    @property
    def open_tokens(self) -> int:
        """How many tokens all open blocks have."""

    @property
    def references(self) -> bytes:
        """The open blocks as references (`tokenmill.wire.pieces`); empty in a packing with one open block."""


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
        self, numbers: Integers, owners: Integers, rows: npt.NDArray[np.void], metas: Metas, blocks: int
    ) -> list[bytes]:
        # a block's pieces are of consecutive documents, so their metas follow one another
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

    offsets: Integers
    lengths: Integers
    """In tokens."""
    positions: Integers
    """Of each stretch's first token among its document's; `PADDING` for padding."""
    metas: Metas


_NONE: Final = _StreamPart(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), Metas.join([]))


def _pieces(
    run: _StreamPart, starts: Integers, ends: Integers, size: int
) -> tuple[Integers, Integers, npt.NDArray[np.void]]:
    """Return block, stretch and row of each intersection of stretches ``[starts, ends)`` with blocks, in order."""
    first_blocks = starts // size
    counts = (ends - 1) // size - first_blocks + 1
    owners, numbers = numbered(counts)
    numbers += first_blocks[owners]
    skipped = np.maximum(numbers * size - starts[owners], 0)
    positions = run.positions[owners]
    rows = np.empty(len(owners), dtype=PIECE)
    rows["start"] = np.maximum(starts[owners] - numbers * size, 0)
    rows["meta_bytes"] = np.diff(run.metas.bounds)[owners]
    rows["offset"] = run.offsets[owners]
    rows["position"] = np.where(positions == PADDING, PADDING, positions + skipped)
    return numbers, owners, rows
