"""Eras: the record of one, the chain of them in a log, and when the next one is closed.

A record is canonical JSON, linked to the one before by its hash, on a control topic and in a store::

    {
        "before": "<hash of era 6>",
        "closed": 1767225600000,
        "end": false,
        "era": 7,
        "ranges": [[4096, 8000, "<chain hash before block 4096>", "<chain hash after block 7999>"], [...], ...],
    }

``ranges`` has an entry for each partition that the stream has had since the first era, in order; the range is empty
where nothing is new. So the last era alone says how the next one must continue. The key on the control topic is
``era``. The hash of an era is the xxh3_128 of these bytes, so its spelling is fixed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import xxhash

from tokenmill.canonical import canonical_json
from tokenmill.reading.continuing import Extent
from tokenmill.untrusted import parse_json
from tokenmill.wire.chain import HASH_BYTES, genesis_hash

ERA_KEY: Final = b"era"
_BEYOND: Final = 1 << 48
"""Numbers of blocks and milliseconds are below this, so that sums over all partitions stay below 64 bits."""
_MOST_RANGES: Final = 1 << 16
"""More partitions than a topic of any cluster has."""


class EraRange(NamedTuple):
    """The blocks ``[first, stop)`` of a partition."""

    first: int
    stop: int
    """Behind the last block; ``first`` where the range is empty."""
    before: bytes
    """The chain hash before block ``first``."""
    after: bytes
    """The chain hash after the last block; ``before`` where the range is empty."""

    @property
    def blocks(self) -> int:
        """How many blocks these are."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Era:
    """A numbered set of block ranges, one for each partition, that becomes trainable at once."""

    number: int
    before: bytes
    """The hash of the era before; of era 0: `first_hash`."""
    ranges: tuple[EraRange, ...]
    closed: int
    """When it was written, in milliseconds since 1970: for people and for lags; nothing is decided by it."""
    end: bool = False
    """Whether this is the end marker, which has no blocks and which no era follows."""

    @property
    def blocks(self) -> int:
        """How many blocks it has, all partitions together."""
        return sum(part.blocks for part in self.ranges)

    @property
    def hash(self) -> bytes:
        """The hash that the next era names: of this record, and through ``before`` of all before it."""
        return era_hash(self.pack())

    def pack(self) -> bytes:
        """Return the record's value."""
        return canonical_json(
            {
                "era": self.number,
                "before": self.before.hex(),
                "ranges": [[first, stop, before.hex(), after.hex()] for first, stop, before, after in self.ranges],
                "closed": self.closed,
                "end": self.end,
            }
        )

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """Return the era that `pack` made these bytes of; raises ValueError where they are no era of this version."""
        try:
            found = parse_json(value)
            era = cls(
                number=found["era"],
                before=bytes.fromhex(found["before"]),
                ranges=tuple(_range(part) for part in found["ranges"]),
                closed=found["closed"],
                end=found["end"],
            )
            spelled = era.pack()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"no era: {error!r}") from error
        if spelled != value:  # numbers that are no integers, other spellings, unknown fields
            raise ValueError("no era: spelled in another way")
        _require_sound(era)
        return era


def era_hash(value: bytes) -> bytes:
    """Return the hash of the era whose record has this value."""
    return xxhash.xxh3_128_digest(value)


def why_no_era(value: bytes | None) -> str | None:
    """Return why the value of a record with key `ERA_KEY` is no era of any stream; None where it is one.

    One that does not continue the chain is an era: the second one of two writers that close the same era.
    """
    try:
        Era.unpack(value or b"")
    except ValueError as error:
        return str(error)
    return None


def first_hash(fingerprint: bytes) -> bytes:
    """Return the hash before era 0 of a stream with this fingerprint (16 bytes)."""
    return xxhash.xxh3_128_digest(b"tokenmill eras 1" + fingerprint)


def _range(part: Sequence[Any]) -> EraRange:
    first, stop, before, after = part
    return EraRange(first, stop, bytes.fromhex(before), bytes.fromhex(after))


def _require_sound(era: Era) -> None:
    numbers = [era.number, era.closed, *(number for part in era.ranges for number in part[:2])]
    if not all(type(number) is int and 0 <= number < _BEYOND for number in numbers) or type(era.end) is not bool:
        raise ValueError("no era: a number is negative, beyond all bounds, or none")
    if len(era.ranges) > _MOST_RANGES:
        raise ValueError("no era: it has more partitions than there can be")
    hashes = [era.before, *(found for part in era.ranges for found in part[2:])]
    if any(len(found) != HASH_BYTES for found in hashes):
        raise ValueError("no era: a hash has another length")
    if any(part.blocks < 0 or (not part.blocks and part.before != part.after) for part in era.ranges):
        raise ValueError("no era: a range ends before it begins, or is empty and changes the hash")
    if era.end == bool(era.blocks):
        raise ValueError("no era: it has no blocks, or is the end marker and has some")


class EraLog:
    """The chain of eras of a stream: `add` takes the log's records in order. Holds only the last era.

    The log alone decides which records of several writers count. One counts if it names the hash of the era before,
    continues each partition at the block and chain hash where that era ended, and follows no end marker. Its place does
    not matter: after the log lost an era, a live writer's next one continues nothing and is ignored.
    """

    def __init__(self, fingerprint: bytes, last: Era | None = None) -> None:
        """Begin after era ``last`` of the stream with this fingerprint; None: before era 0."""
        self.fingerprint: Final = fingerprint
        self.last = last
        self.head = first_hash(fingerprint) if last is None else last.hash
        """The hash that the next era must name."""

    @property
    def next_number(self) -> int:
        """The number of the next era."""
        return 0 if self.last is None else self.last.number + 1

    @property
    def ended(self) -> bool:
        """Whether the last era is the end marker: nothing will follow."""
        return self.last is not None and self.last.end

    @property
    def partitions(self) -> int:
        """Number of partitions in the eras so far."""
        return 0 if self.last is None else len(self.last.ranges)

    def end(self, partition: int) -> tuple[int, bytes]:
        """Return the block, and the chain hash before it, with which a partition's next range begins."""
        if self.last is None or partition >= self.partitions:
            return 0, genesis_hash(self.fingerprint, partition)
        found: EraRange = self.last.ranges[partition]
        return found.stop, found.after

    def add(self, value: bytes | None) -> Era | None:
        """Take the value of the next record with key `ERA_KEY`; return the era, or None if it is ignored."""
        try:
            era = Era.unpack(value or b"")
        except ValueError:
            return None
        if not self.continues(era):
            return None
        self.last = era
        self.head = era.hash
        return era

    def continues(self, era: Era) -> bool:
        """Return whether a valid era is the next one of this chain."""
        return (
            not self.ended
            and era.number == self.next_number
            and era.before == self.head
            and len(era.ranges) >= self.partitions
            and all(self.end(number) == (part.first, part.before) for number, part in enumerate(era.ranges))
        )


def close_era(
    log: EraLog,
    extents: Mapping[int, Extent],
    *,
    now: int,
    era_blocks: int,
    overdue: bool,
    end: bool = False,
) -> Era | None:
    """Return the era that should be written now, or None.

    An era is closed at ``era_blocks`` new blocks, all partitions together, or as soon as there is one when it is
    ``overdue``. It takes all new blocks, not the first ``era_blocks``: a token partition's last message says how far it
    reaches, and the hashes between would have to be read from all messages before. With ``end``, the end marker is
    returned once no blocks are left, and before that an era of those that are.

    Args:
        log: the eras so far, as the control topic has them now.
        extents: how far each token partition reaches. One that is missing, or reaches less far than the eras, as after
            a lost tail, is continued another time.
        now: milliseconds since 1970, for the record.
        era_blocks: new blocks that close an era, 1 at least.
        overdue: whether the oldest new block has waited long enough.
        end: whether the stream is to be closed.

    """
    if log.ended:
        return None
    ranges = []
    for partition in range(max([log.partitions, *(number + 1 for number in extents)])):
        first, before = log.end(partition)
        extent = extents.get(partition)
        reached = Extent(first, before) if extent is None or extent.blocks <= first else extent
        ranges.append(EraRange(first, reached.blocks, before, reached.hash))
    new = sum(part.blocks for part in ranges)
    if new and (new >= era_blocks or overdue or end):
        return Era(log.next_number, log.head, tuple(ranges), now)
    return Era(log.next_number, log.head, tuple(ranges), now, end=True) if end and not new else None
