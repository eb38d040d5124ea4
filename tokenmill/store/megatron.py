r"""The ``.idx`` by which Megatron's indexed dataset reads a segment's ``.bin`` (written at seal).

Layout of Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``, version 1, little-endian::

    9s "MMIDIDX\0\0" | u8 version = 1 | u1 dtype | u8 sequences | u8 document ends
    i4 lengths[sequences] | i8 byte pointers[sequences] | i8 document ends[sequences + 1]

Every block is one sequence and one document of its own: Megatron's samplers need documents. Where ours begin and end is
in the document table; Megatron's format has no room for it.
"""

from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

_HEADER: Final = Struct("<9sQBQQ")
_MAGIC: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_CODES: Final = {"uint8": 1, "uint16": 8, "uint32": 4}
"""Megatron's codes. It has none for uint32; its int32 (4) reads the same ids, as every id is below 2**31."""


def megatron_index(blocks: int, block_tokens: int, dtype: "np.dtype[np.unsignedinteger]") -> bytes:
    """Return the ``.idx`` of a ``.bin`` of ``blocks`` blocks."""
    return index_of_lengths(np.full(blocks, block_tokens), dtype)


def index_of_lengths(lengths: npt.NDArray[np.int64], dtype: "np.dtype[np.unsignedinteger]") -> bytes:
    """Return the ``.idx`` of a ``.bin`` of sequences of so many tokens, back to back, each a document of its own."""
    header = _HEADER.pack(_MAGIC, _VERSION, _CODES[dtype.name], len(lengths), len(lengths) + 1)
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * dtype.itemsize
    return header + lengths.astype("<i4").tobytes() + pointers.tobytes() + _document_ends(len(lengths))


def _document_ends(count: int) -> bytes:
    return np.arange(count + 1, dtype="<i8").tobytes()
