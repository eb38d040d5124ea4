"""Where a chain continues."""

from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from zlib_ng.zlib_ng import crc32

NO_RECORD: Final = -1


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a chain in its raw partition, together with the last record that the chain passed.

    aiokafka has no topic ids, so this record is how a deleted, recreated or rewritten topic is noticed.
    """

    next_offset: int
    """Offset of the source record from which the next token comes."""
    taken: int
    """Tokens of the document at ``next_offset`` that are in blocks already; 0 between documents, and where a document
    or a flush has made no more than other blocks leave."""
    block: int
    """Number of the next block."""
    last_offset: int = NO_RECORD
    """Offset of the last record that the chain passed or took tokens from; -1 before the first."""
    last_crc: int = 0
    """`record_crc` of that record."""
    last_timestamp: int = 0
    """Timestamp of that record, in milliseconds."""

    LAYOUT = Struct("<qqQqIq")

    def pack(self) -> bytes:
        """Return the cursor as 44 bytes, in the order of its fields."""
        return self.LAYOUT.pack(
            self.next_offset, self.taken, self.block, self.last_offset, self.last_crc, self.last_timestamp
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Self:
        """Return the cursor that `pack` made these bytes of."""
        return cls(*cls.LAYOUT.unpack(data))

    @property
    def within(self) -> bool:
        """Whether the chain is in the middle of the record at `next_offset`: it gave tokens, or made a block leave."""
        return self.last_offset >= self.next_offset

    @property
    def place(self) -> tuple[int, int, int]:
        """A sort key: of two cursors of one chain, the further one has the greater place."""
        return (self.block, self.next_offset, self.taken)


def record_crc(key: bytes | None, value: bytes | memoryview | None) -> int:
    """Return the CRC-32 of a source record's key and value, null counting as empty."""
    return crc32(value or b"", crc32(key or b""))
