"""How documents' tokens become blocks: one module a way, behind `Packing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class PackedDocument(NamedTuple):
    """One kept document on its way into blocks."""

    offset: int
    """Offset of its source record."""
    tokens: npt.NDArray[np.integer]
    """Its token ids, end-of-document id not included; shape ``[n]``, any integer dtype."""
    meta: bytes
    """Canonical JSON of its id and carried fields, for its pieces."""
    taken: int = 0
    """Tokens (end-of-document id included) that are in blocks already."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Blocks that became full, and where each one ended."""

    tokens: npt.NDArray[np.unsignedinteger]
    """Shape ``[blocks, block_tokens]``, in the stream's dtype, contiguous."""
    entries: Sequence[bytes]
    """One per block (`tokenmill.pieces`)."""
    documents: Sequence[int]
    """For each block, the index among the added documents of the one that its last token belongs to."""
    taken: Sequence[int]
    """For each block, how many tokens of that document are in blocks now; 0 when the block ends with the document."""


class Packing(Protocol):
    """Packs documents in the order of their offsets; the result is independent of how they are divided into calls."""

    def add(self, documents: Sequence[PackedDocument]) -> Packed:
        """Append documents, each followed by the end-of-document id; return the blocks that became full."""
        ...

    def fill(self, offset: int) -> Packed:
        """Fill the open block with padding that the flush record at ``offset`` asked for; nothing if it is empty."""
        ...

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """The tokens and the entry of the open block so far; both empty when no block is open."""
        ...
