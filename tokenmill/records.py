"""One message of a raw-text topic, as the pure code sees it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

FLUSH_HEADER: Final = ("tokenmill", b"flush")
"""A record with this header and no value fills the open blocks of its partition."""


class Record(NamedTuple):
    """A source record: all that its outcome and the cursor may depend on."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch, as Kafka has it; -1 when it has none."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone, or a flush when the header says so."""
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def is_flush(self) -> bool:
        """Whether the record asks for the open blocks to be filled."""
        return self.value is None and FLUSH_HEADER in self.headers
