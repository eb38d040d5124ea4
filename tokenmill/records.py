"""One message of a raw-text topic, as the pure code sees it."""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

FLUSH_HEADER: Final = ("tokenmill", b"flush")
"""A record with this header and no value fills the open blocks of its partition, where the recipe allows it."""


class SourceRecord(Protocol):
    """Everything that a record's outcome and the cursor may depend on; records of Kafka clients have it."""

    @property
    def offset(self) -> int:
        """Its offset in its partition."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, as Kafka has it; -1 when it has none."""

    @property
    def key(self) -> bytes | None:
        """Its key, if it has one."""

    @property
    def value(self) -> bytes | None:
        """None is a tombstone, or a flush when the header says so and the recipe allows it."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Name and value of each header."""


class Record(NamedTuple):
    """A plain source record; see `SourceRecord`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def index_at(records: Sequence[SourceRecord], offset: int) -> int:
    """Return the index of the first record at an offset, or behind it."""
    return bisect_left(records, offset, key=attrgetter("offset"))


def is_flush(record: SourceRecord) -> bool:
    """Return whether the record asks for the open blocks to be filled; the recipe says whether it may."""
    return record.value is None and FLUSH_HEADER in record.headers
