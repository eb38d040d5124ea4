"""The whole documents that begin in a range of a partition's blocks, which may go on in later blocks."""

from typing import Final

import numpy as np

from tokenmill.samples.document_index import DocumentIndex
from tokenmill.store import PartitionReader

_AHEAD: Final = 4
"""Times as many blocks behind the range as before are looked at where documents have not ended."""


def documents_beginning_in(reader: PartitionReader, first: int, stop: int) -> tuple[DocumentIndex, int] | None:
    """Return an index whose first documents are those that begin in blocks ``[first, stop)``, and how many these are.

    They are in the order of their first tokens, and a function of the chain: later blocks are read as far as these
    documents go on. None where it is not known yet how all of them end.

    Raises:
        InputError: the blocks are not (or no longer) in the store.
        DamagedError: the document table is damaged.

    """
    begun = int((reader.pieces_of(np.arange(first, stop)).rows["position"] == 0).sum())
    ahead = 1
    while True:
        end = min(stop + ahead, reader.blocks)
        index = DocumentIndex.of_ranges(reader.info, [(reader, first, end)])
        blocks, _ = index.first_pieces(np.arange(len(index)))
        count = int(np.searchsorted(blocks, stop))
        if count == begun:
            return index, count
        if end == reader.blocks:
            return None
        ahead *= _AHEAD
