"""The stream's ignore list: messages on a token topic that readers pass over because a person said so.

A message that the mill did not write, or one of another history, halts each reader that meets it. A person who has
looked at it adds it to the list (`tokenmill ignore`), by its offset and a hash of the whole record.

The list never changes which blocks a chain has. A reader offers every message to its chain first. It asks the list only
where it would halt, or wait for blocks before the message. A message that continues the chain is taken, on the list or
not. So readers with different lists, even a forged one, take the same blocks and differ only in how far they get. Code
that only looks for a place to begin leaves listed messages out at once; a place further back works as well.
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import xxhash

from tokenmill.canonical import canonical_json
from tokenmill.records import SourceRecord

IGNORE_KEY: Final = b"ignore"
_LENGTH: Final = Struct("<q")
_COUNT: Final = Struct("<I")


def record_hash(record: SourceRecord) -> bytes:
    """Return the hash (16 bytes) of a record's key, value and headers: a copy of it elsewhere has the same hash."""
    hashed = xxhash.xxh3_128(b"tokenmill ignore 1")
    for part in (record.key, record.value):
        _add(hashed, part)
    hashed.update(_COUNT.pack(len(record.headers)))
    for name, value in record.headers:
        _add(hashed, name.encode())
        _add(hashed, value)
    return hashed.digest()


def _add(hashed: "xxhash.xxh3_128", part: bytes | memoryview | None) -> None:
    hashed.update(_LENGTH.pack(-1 if part is None else len(part)))
    if part is not None:
        hashed.update(part)


def ignore_record(partition: int, offset: int, found: bytes) -> tuple[bytes, bytes]:
    """Return the control record (key, value) that puts the message with this `record_hash` on the list."""
    return IGNORE_KEY, canonical_json({"partition": partition, "offset": offset, "hash": found.hex()})


@dataclass(slots=True)
class IgnoreList:
    """The messages of a stream's token topic that readers pass over."""

    _places: dict[int, dict[int, set[bytes]]] = field(default_factory=dict)
    """Hashes by partition and offset: several at one offset where a topic was recreated."""

    def add(self, partition: int, offset: int, found: bytes) -> None:
        """Put a message on the list."""
        self._places.setdefault(partition, {}).setdefault(offset, set()).add(found)

    def names(self, partition: int, record: SourceRecord) -> bool:
        """Return whether exactly this record of the token topic's ``partition`` is on the list."""
        hashes = self._places.get(partition, {}).get(record.offset)
        return hashes is not None and record_hash(record) in hashes

    def size(self, partition: int) -> int:
        """Return how many messages of a partition are on the list; it only grows."""
        return sum(map(len, self._places.get(partition, {}).values()))

    def offsets(self) -> dict[int, list[int]]:
        """Return the offsets on the list, by partition, for people."""
        return {partition: sorted(places) for partition, places in sorted(self._places.items())}
