"""How documents' tokens become blocks: one module a way, behind `Packing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.milling.packing.stretches import Stretches
from tokenmill.stages.document_columns import Metas
from tokenmill.stages.engines import TokenBatch


class Documents(NamedTuple):
    """Kept documents on their way into blocks, in columns."""

    offsets: npt.NDArray[np.int64]
    """Shape ``[documents]``: offsets of the source records, ascending."""
    tokens: Stretches
    """Token ids in the stream's dtype, the end-of-document id behind each document (`ended`)."""
    bounds: npt.NDArray[np.int64]
    """Shape ``[documents + 1]``: document ``n`` has tokens ``bounds[n]`` to ``bounds[n + 1]``."""
    metas: Metas
    """Canonical JSON of each document's id and carried fields, for its pieces."""
    taken: int = 0
    """Tokens of the first document that are in blocks already."""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return len(self.offsets) > 0

    def part(self, low: int, high: int) -> "Documents":
        """Return a view of documents ``[low, high)``."""
        return Documents(self.offsets[low:high], self.tokens, self.bounds[low : high + 1], self.metas.part(low, high))


class Ended(NamedTuple):
    """The tokens of consecutive documents, the end-of-document id behind each."""

    tokens: npt.NDArray[np.unsignedinteger]
    bounds: npt.NDArray[np.int64]
    """Shape ``[documents + 1]``: document ``n`` has ``tokens[bounds[n] : bounds[n + 1]]``."""


def ended(batch: TokenBatch, end_of_document: int, dtype: np.dtype[np.unsignedinteger]) -> Ended:
    """Return the documents of ``batch`` in ``dtype``, each followed by the end-of-document id."""
    bounds = batch.offsets + np.arange(len(batch.offsets))
    tokens = np.empty(bounds[-1], dtype)
    from_documents = np.ones(len(tokens), np.bool_)
    from_documents[bounds[1:] - 1] = False
    tokens[bounds[1:] - 1] = end_of_document
    tokens[from_documents] = batch.ids
    return Ended(tokens, bounds)


@dataclass(frozen=True, slots=True)
class Packed:
    """Blocks that became full, and where each one ended."""

    tokens: Stretches
    """Those of all blocks, one block after the other, in the stream's dtype; views of what was packed."""
    entries: Sequence[bytes]
    """One per block (`tokenmill.wire.pieces`)."""
    documents: Sequence[int]
    """For each block, the index among the added documents of the one that its last token belongs to."""
    taken: Sequence[int]
    """For each block, how many tokens of that document are in blocks now; 0 when the block ends with the document."""


class Packing(Protocol):
    """Packs documents in the order of their offsets; the result is independent of how they are divided into calls."""

    def add(self, documents: Documents) -> Packed:
        """Append documents; return the blocks that became full."""
        ...

    def fill(self, offset: int) -> Packed:
        """Fill the open block with padding that the flush record at ``offset`` asked for; nothing if it is empty."""
        ...

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """The tokens and the entry of the open block so far; both empty when no block is open."""
        ...
