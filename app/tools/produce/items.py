"""What a source is, and what it yields: documents with the bytes to send, or the reason why there is none."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Item(NamedTuple):
    """One document, as it is sent."""

    value: bytes
    """The record's value."""
    text: str
    """The document's text, which is somewhere in the value."""
    key: bytes | None = None
    """The record's key; it decides the partition."""


class Refused(NamedTuple):
    """Something in a source that is no document."""

    where: str
    """File and, where it has such, line, row or number of the record, for people."""
    why: str
    data: bytes = b""
    """The data itself, for a dead letter; empty if it is too long, or no bytes."""
    broken: bool = False
    """The source cannot be read to its end: it is truncated, damaged, or not what it should be."""

    @property
    def without_data(self) -> "Refused":
        """Where and why, without the data: to be kept for people."""
        return self._replace(data=b"")


class Unmet(NamedTuple):
    """Counts of documents that were read and do not meet all conditions of ``--where``."""

    documents: int = 0
    without_field: int = 0
    """How many of these lack the field of the condition: all of them, where its name is misspelt."""


class Place(NamedTuple):
    """A place in a source between two entries, from which it can be read again."""

    entry: int = 0
    """What the format counts: lines, rows, records, elements; 0 is the start."""
    byte: int = 0
    """Where to go in the (decompressed) bytes; 0 for formats that count entries from the start."""


class ItemChunk(NamedTuple):
    """Consecutive items of a source; where it ends depends on the source and the options alone."""

    items: list[Item | Refused]
    after: Place
    """Where the next chunk begins."""
    bytes_read: int
    """Bytes read of the file on disk, for progress; 0 where that is unknown."""
    size: int
    """Bytes of the values, and of what is refused: by it memory is bounded."""
    last: bool = False
    """The source ends with it."""
    unmet: Unmet = Unmet()


class DocumentSource(Protocol):
    """Where documents come from; another kind of source is a new class with these."""

    @property
    def name(self) -> str:
        """The name for people; the same in every run of the same command."""

    @property
    def size(self) -> int:
        """Bytes on disk; 0 if unknown."""

    def signature(self) -> bytes:
        """Return bytes that change when the content does; for sources that are no files."""

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the items after ``start``, which is the end of a chunk, or the beginning.

        The last chunk, and no other, is ``last``; it may be empty. What cannot be read is `Refused`, not raised.
        """
