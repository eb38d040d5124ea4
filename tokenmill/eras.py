"""Eras: which blocks of all partitions are trainable together, and in which order everyone reads them.

The record of an era is canonical JSON (docs/format.md), linked to the one before by its hash, on a control topic and in
a store. Its ranges have an entry for each partition that the stream has had since the first era, in order; the range is
empty where nothing is new. So the last era alone says how the next one must continue. The hash of an era is the
xxh3_128 of these bytes, so its spelling is fixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import DifferenceError
from tokenmill.reading import Extent
from tokenmill.recipe import canonical_json
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

    def lacks(self, stops: Mapping[int, int]) -> bool:
        """Return whether blocks of it are missing where partitions reach ``stops``; then they are of all later eras."""
        return any(stops.get(number, 0) < part.stop for number, part in enumerate(self.ranges))

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
                ranges=tuple(EraRange(*part[:2], *map(bytes.fromhex, part[2:])) for part in found["ranges"]),
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
    log: EraLog, extents: Mapping[int, Extent], *, now: int, era_blocks: int, overdue: bool, end: bool = False
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


class LogRecord(NamedTuple):
    """A record of the control topic."""

    offset: int
    key: bytes | None
    value: bytes | None


class EraFollower:
    """Follows the eras on a control topic that may lose its tail, look by look, in constant memory.

    A look, where ``read`` reads the log from an offset (None: its beginning) to its end::

        records = read(follower.position)
        if follower.position is not None and not follower.holds(next(records)):
            follower.restart()
            records = read(None)
        eras = [era for record in records if (era := follower.add(record))]
        follower.finish()

    One that was interrupted is undone with `rewind`, back to the last era that was handed on.
    """

    def __init__(self, stream: str, fingerprint: bytes, last: Era | None = None, position: int | None = None) -> None:
        """Begin after era ``last``, whose record was seen at offset ``position``; with None before the first era."""
        self._stream = stream
        self._fingerprint = fingerprint
        self._known: Era | None = None
        """While the log is read again from its beginning: the era that must be found in it."""
        self.position = position if last is not None else None
        """The offset from which to look; None: from the log's beginning."""
        self.log = EraLog(fingerprint, last)
        self.ignored = 0
        """Records with the key of an era that are no next era; those after the last era count again with each look."""

    @property
    def state(self) -> tuple[Era | None, int | None, int]:
        """What to `rewind` to: last era, `position`, `ignored`; taken before a look, or an era that `add` gave."""
        return self.log.last, self.position, self.ignored

    def holds(self, record: LogRecord | None) -> bool:
        """Return whether a look's first record is the last era that was seen; else the log lost its tail: `restart`."""
        last = self.log.last
        return (
            record is not None
            and last is not None
            and (record.offset, record.key) == (self.position, ERA_KEY)
            and record.value == last.pack()
        )

    def restart(self) -> None:
        """Expect the log's records from its beginning; the last era that was seen must be among them."""
        self._known = self._known or self.log.last
        self.log = EraLog(self._fingerprint)
        self.position = None
        self.ignored = 0

    def rewind(self, state: tuple[Era | None, int | None, int]) -> None:
        """Go back to that state: for a look that did not reach the log's end, whose eras were not handed on."""
        self._known = None
        last, self.position, self.ignored = state
        self.log = EraLog(self._fingerprint, last)

    def add(self, record: LogRecord) -> Era | None:
        """Return a record's era if it is new; raises DifferenceError where the last one seen is not on this chain."""
        if record.key != ERA_KEY:
            return None
        era = self.log.add(record.value)
        if era is None:
            self.ignored += 1
            return None
        self.position = record.offset
        if self._known is None:
            return era
        if era.number == self._known.number:
            if era != self._known:
                raise self._lost(self._known)
            self._known = None
        return None

    def finish(self) -> None:
        """End a look, at the log's end; raises DifferenceError where that is before the era that was seen last."""
        if self._known is not None:
            raise self._lost(self._known)

    def _lost(self, era: Era) -> DifferenceError:
        return DifferenceError(
            f"era {era.number} of {self._stream} is not on its control topic any more, which lost its tail: the topic "
            "does not say what was trained on since; go on from a checkpoint before that era, or give new text a "
            "stream of its own (stream_suffix)"
        )


_ROUNDS: Final = 8
_BITS_AT_LEAST: Final = 3
"""Of five items all orders are as likely as each other only with more than the four rounds that large domains need
(Luby and Rackoff), and with halves of three bits or more: measured by chi squared."""
_WORTH_A_TABLE: Final = 4
"""A table of the whole square is cheaper from one position for four of its items on."""
_SMALL: Final = 1 << 2 * _BITS_AT_LEAST
"""Up to so many items, the whole order is computed at once: where few values of the square are items, arrays would walk
through it in dozens of steps."""
_BYTE_BITS: Final = 8
"""Halves of so many bits are looked up as bytes, at half the cost: eras of up to 65,536 samples."""
_KEY: Final = Struct("<qQQB")
_MIX: Final = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT: Final = np.uint64(31)
"""Shifts and multipliers of splitmix64's finalizer (https://prng.di.unimi.it/splitmix64.c)."""

Positions = npt.NDArray[np.int64]


class Permutation:
    """The order of samples inside an era: a permutation of ``range(size)``, keyed by seed, pass and era.

    A Feistel network over the smallest square of a power of two that holds the domain, walked until it lands in the
    domain ("cycle walking": J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002). Any position
    can be asked for by itself, in constant memory. It shuffles; it keeps no secrets.
    """

    def __init__(self, size: int, *, seed: int, passed: int, era: int) -> None:
        """Compute the keys for so many items, an int64 as seed, the passes made before, and the era's number."""
        self._size = size
        self._bits = max(_BITS_AT_LEAST, ((max(size, 1) - 1).bit_length() + 1) // 2)
        self._keys = [np.uint64(xxhash.xxh3_64_intdigest(_KEY.pack(seed, passed, era, i))) for i in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._size

    def __call__(self, positions: Positions) -> Positions:
        """Return the items at ``positions``, an int64 array of any shape with values in ``range(size)``."""
        if self._size <= _SMALL:
            return self._few[positions]
        if positions.size * _WORTH_A_TABLE >= 1 << 2 * self._bits:
            return self._walk(positions)
        items = self._encipher(positions.astype(np.uint64))
        while (outside := items >= self._size).any():
            items[outside] = self._encipher(items[outside])
        return items.astype(np.int64)

    def inverse(self, items: Positions) -> Positions:
        """Return the positions of items: what `__call__` makes of these positions is the items again."""
        if self._size <= _SMALL:
            return np.argsort(self._few)[items]
        positions = self._decipher(items.astype(np.uint64))
        while (outside := positions >= self._size).any():
            positions[outside] = self._decipher(positions[outside])
        return positions.astype(np.int64)

    @cached_property
    def _few(self) -> Positions:
        """The items at all positions, of which there are `_SMALL` at most."""
        bits, size, items = self._bits, self._size, []
        values = np.arange(_SMALL)
        left, right = values >> bits, values & (1 << bits) - 1
        for table in self._tables().view(np.int64):
            left, right = right, left ^ table.take(right)
        square = (left << bits | right).tolist()
        for position in range(size):
            item = square[position]
            while item >= size:
                item = square[item]
            items.append(item)
        return np.array(items, np.int64)

    def _walk(self, positions: Positions) -> Positions:
        """Return the items at positions by a table of the whole square."""
        table = self._square()
        items = table.take(positions)
        flat = items.reshape(-1)
        (outside,) = (flat >= self._size).nonzero()
        moved = flat.take(outside)
        while len(outside):
            moved = table.take(moved)
            flat[outside] = moved
            (still,) = (moved >= self._size).nonzero()
            outside, moved = outside.take(still), moved.take(still)
        return items.astype(np.int64, copy=False)

    def _square(self) -> npt.NDArray[np.integer]:
        """Return what the network makes of every value in its square; of a small one in two bytes each."""
        if self._bits > _BYTE_BITS:
            return self._encipher(np.arange(1 << 2 * self._bits, dtype=np.uint64)).view(np.int64)
        halves = np.arange(1 << self._bits, dtype=np.uint8)
        tables = np.zeros((_ROUNDS, 1 << _BYTE_BITS), np.uint8)
        tables[:, : len(halves)] = self._tables()
        left = np.tile(halves, len(halves))  # as after the first round, in which each half meets each other once
        right = np.bitwise_xor.outer(halves, tables[0, : len(halves)]).reshape(-1)
        for table in tables[1:]:
            left ^= np.frombuffer(right.tobytes().translate(table.data), np.uint8)
            left, right = right, left
        square = left.astype(np.uint16)
        square <<= self._bits
        square |= right
        return square

    def _tables(self) -> npt.NDArray[np.uint64]:
        """Return what each round makes of each value of a half, ``[rounds, values]``."""
        tables = np.arange(1 << self._bits, dtype=np.uint64) + np.array(self._keys)[:, None]
        _mix(tables, np.empty_like(tables))
        tables &= np.uint64((1 << self._bits) - 1)
        return tables

    def _encipher(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return what the network makes of values in its square, by look-ups where these are more than halves."""
        bits, mask = np.uint64(self._bits), np.uint64((1 << self._bits) - 1)
        left, right = values >> bits, values & mask
        mixed = np.empty_like(values)
        if values.size > 1 << self._bits:
            for table in self._tables():
                np.take(table, right.view(np.int64), out=mixed, mode="clip")
                left ^= mixed
                left, right = right, left
        else:
            scratch = np.empty_like(values)
            for key in self._keys:
                np.add(right, key, out=mixed)
                _mix(mixed, scratch)
                mixed &= mask
                left ^= mixed
                left, right = right, left
        left <<= bits
        left |= right
        return left

    def _decipher(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return what `_encipher` makes ``values`` of: its rounds, backwards."""
        bits, mask = np.uint64(self._bits), np.uint64((1 << self._bits) - 1)
        left, right = values >> bits, values & mask
        for key in reversed(self._keys):
            left, right = right, left
            mixed = right + key
            _mix(mixed, np.empty_like(mixed))
            left = left ^ (mixed & mask)
        return (left << bits) | right


def _mix(values: npt.NDArray[np.uint64], scratch: npt.NDArray[np.uint64]) -> None:
    """Apply splitmix64's finalizer in place."""
    for shift, multiplier in _MIX:
        np.right_shift(values, shift, out=scratch)
        values ^= scratch
        values *= multiplier
    np.right_shift(values, _LAST_SHIFT, out=scratch)
    values ^= scratch
