"""Documents on their way into blocks, and the blocks: what goes into a packing and what comes out (`Packing`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.wire.pieces import NO_BLOCKS

from ..document_columns import Metas, join_bounds

Array = npt.NDArray[np.unsignedinteger]


class Stretches:
    """Consecutive tokens of one dtype in several arrays: they are copied once, into the message that takes them.

    The arrays are not changed any more.
    """

    __slots__ = ("_arrays", "_size")

    def __init__(self, arrays: Iterable[Array]) -> None:
        """Take arrays of one dimension."""
        self._arrays = [array for array in arrays if len(array)]
        self._size = sum(map(len, self._arrays))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Array]:
        return iter(self._arrays)

    def between(self, start: int, stop: int) -> "Stretches":
        """Return a view of the tokens ``[start, stop)``."""
        return Stretches(self._between(start, stop))

    def cut(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> list[memoryview]:
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

    def _between(self, start: int, stop: int) -> Iterator[Array]:
        for array in self._arrays:
            if stop <= 0:
                return
            yield array[max(start, 0) : stop]
            start, stop = start - len(array), stop - len(array)

    def tobytes(self) -> bytes:
        """Return a copy of the tokens as they are on disk."""
        return b"".join([array.data for array in self._arrays])


class ScatteredTokens:
    """Consecutive tokens that are in many small buffers: they are copied once, into the message that takes them."""

    __slots__ = ("_buffers", "_ends", "_item")

    def __init__(self, buffers: Sequence[bytes | memoryview], ends: npt.NDArray[np.int64], item: int) -> None:
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

    offsets: npt.NDArray[np.int64]
    """Shape ``[documents]``: offsets of the source records, ascending."""
    tokens: Stretches
    """Token ids in the stream's dtype, each document with the ids before and after its text."""
    bounds: npt.NDArray[np.int64]
    """Shape ``[documents + 1]``: document ``n`` has tokens ``bounds[n]`` to ``bounds[n + 1]``."""
    metas: Metas
    """Canonical JSON of each document's id and carried fields, for its pieces."""
    taken: int = 0
    """Tokens of the first document that are in blocks already."""
    crc: Callable[[int], int] = _no_crc
    """Gives the CRC of a document's record (`tokenmill.wire.chain.record_crc`), for packings that refer to records."""
    left_out: npt.NDArray[np.int64] | None = None
    """Shape ``[documents]``: ids of each document that no block holds; None in a packing that leaves none out."""

    @classmethod
    def concatenate(cls, parts: Sequence["TokenizedDocuments"]) -> "TokenizedDocuments":
        """Return the documents of all parts, in order; none of them is one that `part` returned."""
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)]),
            Stretches(array for part in parts for array in part.tokens),
            join_bounds(part.bounds for part in parts),
            Metas.concatenate([part.metas for part in parts]),
            left_out=_joined([part.left_out for part in parts]),
        )

    def __bool__(self) -> bool:
        """Whether there is any."""
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


def _joined(parts: Sequence[npt.NDArray[np.int64] | None]) -> npt.NDArray[np.int64] | None:
    """Return the parts one after the other; None where no part is any."""
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


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
        """The tokens and the entry of the open block so far; both empty when no block is open.

        Of a packing with several open blocks: of all of them, one after the other, in the order of `references`.
        """

    @property
    def open_tokens(self) -> int:
        """How many tokens all open blocks have."""

    @property
    def references(self) -> bytes:
        """The open blocks as references (`tokenmill.wire.pieces`); empty in a packing with one open block."""
