"""Messages on a token topic that readers pass over, because a person said so: the stream's ignore list.

A record that is not the mill's, or of another history, halts whoever meets it. A person who has looked at it puts it on
the list (`tokenmill ignore`), by its place and a hash of all of it. The list says nothing about which blocks a chain
has: a reader offers every message to its chain first, and asks the list only where it would have halted, or waited for
blocks before the message. What continues the chain is taken, on the list or not. So readers that know different lists,
or a forged one, take the same blocks, and differ only in how far they come. Who only looks for a place to begin at
leaves the listed ones out at once; a place further back is as good.
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
    """Return the hash (16 bytes) of a record's key, value and headers: the same record somewhere else has it, too."""
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
    """Which messages of a stream's token topic are passed over."""

    _places: dict[int, dict[int, set[bytes]]] = field(default_factory=dict)
    """By partition and offset, the hashes: several where a topic was made anew."""

    def add(self, partition: int, offset: int, found: bytes) -> None:
        """Put a message on the list."""
        self._places.setdefault(partition, {}).setdefault(offset, set()).add(found)

    def names(self, partition: int, record: SourceRecord) -> bool:
        """Return whether a record of the token topic's ``partition`` is on the list, this very one."""
        hashes = self._places.get(partition, {}).get(record.offset)
        return hashes is not None and record_hash(record) in hashes

    def size(self, partition: int) -> int:
        """Return how many messages of a partition are on the list; it only grows."""
        return sum(map(len, self._places.get(partition, {}).values()))

    def offsets(self) -> dict[int, list[int]]:
        """Return the offsets on the list, by partition, for people."""
        return {partition: sorted(places) for partition, places in sorted(self._places.items())}
