"""One era as it stands on a control topic and in a store: canonical JSON, linked to the one before by its hash.

::

    {
        "before": "<hash of era 6>",
        "closed": 1767225600000,
        "end": false,
        "era": 7,
        "ranges": [[0, 4096, 8000, "<chain hash before block 4096>", "<... after block 7999>"], [1, ...]],
    }

The control topic's key is ``era``. The hash of an era is that of these bytes (xxh3_128), so the spelling is fixed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import xxhash

from tokenmill.canonical import canonical_json
from tokenmill.chain import HASH_BYTES

ERA_KEY: Final = b"era"


class EraRange(NamedTuple):
    """The blocks ``[first, stop)`` of one partition."""

    partition: int
    first: int
    stop: int
    before: bytes
    """The chain hash before block ``first``, 16 bytes."""
    after: bytes
    """The chain hash after block ``stop - 1``, 16 bytes."""

    @property
    def blocks(self) -> int:
        """How many blocks these are."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Era:
    """A numbered set of block ranges, at most one for each partition, that becomes trainable at once."""

    number: int
    before: bytes
    """The hash of the era before; of era 0: `first_hash`."""
    ranges: tuple[EraRange, ...]
    """In the order of their partitions, none of them empty."""
    closed: int
    """When it was written, in milliseconds since 1970: for people and for lags; nothing is decided by it."""
    end: bool = False
    """Whether this is the end marker, which has no blocks and which no era follows."""

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return sum(part.blocks for part in self.ranges)

    @property
    def hash(self) -> bytes:
        """Return the hash that the next era names: of this record, and through ``before`` of all before it."""
        return xxhash.xxh3_128_digest(self.pack())

    def pack(self) -> bytes:
        """Return the record's value."""
        return canonical_json(
            {
                "era": self.number,
                "before": self.before.hex(),
                "ranges": [[p, first, stop, a.hex(), b.hex()] for p, first, stop, a, b in self.ranges],
                "closed": self.closed,
                "end": self.end,
            }
        )

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """Return the era that `pack` made these bytes of.

        Raises:
            ValueError: they are none: another writer's, or another version's. Readers ignore such a record.

        """
        try:
            found = json.loads(value)
            era = cls(
                number=found["era"],
                before=bytes.fromhex(found["before"]),
                ranges=tuple(_range(part) for part in found["ranges"]),
                closed=found["closed"],
                end=found["end"],
            )
        except (TypeError, LookupError, RecursionError) as error:
            raise ValueError(f"no era: {error!r}") from error
        if era.pack() != value:  # numbers that are no integers, other spellings, unknown fields
            raise ValueError("no era: spelled in another way")
        _require_sound(era)
        return era


def first_hash(fingerprint: bytes) -> bytes:
    """Return the hash before era 0 of a stream with this fingerprint (16 bytes)."""
    return xxhash.xxh3_128_digest(b"tokenmill eras 1" + fingerprint)


def _range(part: Sequence[Any]) -> EraRange:
    partition, first, stop, before, after = part
    return EraRange(partition, first, stop, bytes.fromhex(before), bytes.fromhex(after))


def _require_sound(era: Era) -> None:
    """Raise ValueError for what no writer writes: this much is said by the record alone."""
    numbers = [number for part in era.ranges for number in part[:3]] + [era.number, era.closed]
    if not all(type(number) is int and number >= 0 for number in numbers) or type(era.end) is not bool:
        raise ValueError("no era: a number is negative, or none")
    partitions = [part.partition for part in era.ranges]
    hashes = [era.before, *(found for part in era.ranges for found in (part.before, part.after))]
    if partitions != sorted(set(partitions)) or any(part.blocks < 1 for part in era.ranges):
        raise ValueError("no era: its ranges are empty or out of order")
    if any(len(found) != HASH_BYTES for found in hashes) or era.end == bool(era.ranges):
        raise ValueError("no era: a hash is too short, or an end has blocks, or another record none")
