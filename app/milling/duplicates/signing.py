"""Records are taken through the steps and signed, before it is known which of their documents are duplicates."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.records import SourceRecord, index_at

from ..partition_mill import Looked, PartitionMill
from .parameters import Deduplication
from .signatures import Hashes, sign


class SignedRecords(NamedTuple):
    """Consecutive records of a partition."""

    milled: Sequence[SourceRecord]
    """Those that are to be milled when all is known of them."""
    looked: Looked
    """The same, behind all steps."""
    offsets: npt.NDArray[np.int64]
    """Of the documents of all records that the steps keep; shape ``[documents]``, ascending."""
    hashes: Hashes
    """Their signatures, as `sign` returns them."""


def sign_records(
    mill: PartitionMill, deduplication: Deduplication, records: Sequence[SourceRecord], begin: int
) -> SignedRecords:
    """Take records through the steps and sign what these keep; those below offset ``begin`` are milled already.

    Raises as `PartitionMill.look`, and SettingsError where numba is not installed.
    """
    cut = index_at(records, begin)
    parts = [mill.look(records[:cut]), mill.look(records[cut:])]
    found = [document for part in parts for columns in part.columns for document in columns.kept_texts()]
    offsets = np.array([offset for offset, _ in found], np.int64)
    return SignedRecords(records[cut:], parts[1], offsets, sign(deduplication, [text for _, text in found]))
