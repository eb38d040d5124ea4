"""The types that readers of a partition return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """The tokens ``[start, stop)`` of a block: a part of one document, or padding."""

    start: int
    """Index of its first token in the block."""
    stop: int
    """Index after its last token."""
    offset: int
    """Offset of the source record in the raw partition."""
    position: int
    """Index among the document's tokens of the first one here; -1: padding."""
    id: str | int | None
    fields: Mapping[str, Any]
    """The fields of the record that the stream carries."""


class Part(NamedTuple):
    """The blocks of a request that are in one segment."""

    where: npt.NDArray[np.int64]
    """Their indices in the request."""
    tokens: Tokens
    """The segment's tokens, ``[blocks, block_tokens]``: a read-only view of the file."""
    rows: npt.NDArray[np.int64]
    """Their row numbers in ``tokens``."""
