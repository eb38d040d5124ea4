"""A fetch: consecutive records of a raw partition, in columns, and the parts in which they are worked on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from tokenmill.bounds import divide
from tokenmill.records import SourceRecord

PART_RECORDS: Final = 4096
"""Records that are decoded, and whose documents are tokenized, before the next ones are: short documents are then
still in the processor's cache (200 bytes each and what Python makes of them are some 2 MB), and a call of the fast
engine, which costs 0.2 ms, has enough of them."""
PART_BYTES: Final = 2 * 1024 * 1024
"""Bound of a part's values, so that texts and what is made of them do not follow the size of a fetch; one record may be
larger."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Consecutive records of a raw partition, in the order of their offsets."""

    records: Sequence[SourceRecord]
    values: Sequence[bytes | None]
    """Theirs; taken out once, for a record that is touched again may have left the processor's cache."""
    offsets: npt.NDArray[np.int64]
    """Shape ``[records]``, ascending."""
    sizes: npt.NDArray[np.int64]
    """Bytes of their values; shape ``[records]``."""

    @classmethod
    def of(cls, records: Sequence[SourceRecord]) -> Self:
        """Return the records as a fetch."""
        values = [record.value for record in records]
        sizes = np.array([len(value or b"") for value in values], dtype=np.int64)
        return cls(records, values, _offsets(records), sizes)

    def part(self, low: int, high: int) -> Self:
        """Return the records ``[low, high)``."""
        between = slice(low, high)
        return replace(
            self,
            records=self.records[between],
            values=self.values[between],
            offsets=self.offsets[between],
            sizes=self.sizes[between],
        )

    def index(self, offset: int) -> int:
        """Return how many records lie below ``offset``."""
        return int(np.searchsorted(self.offsets, offset))

    def parts(self) -> Iterator[tuple[int, int]]:
        """Divide the records into ranges of at most `PART_RECORDS` and about `PART_BYTES`, one record at least."""
        return divide(self.sizes, items=PART_RECORDS, room=PART_BYTES)


def _offsets(records: Sequence[SourceRecord]) -> npt.NDArray[np.int64]:
    if records and records[-1].offset - records[0].offset == len(records) - 1:  # none is missing
        return np.arange(records[0].offset, records[-1].offset + 1, dtype=np.int64)
    return np.array([record.offset for record in records], dtype=np.int64)
