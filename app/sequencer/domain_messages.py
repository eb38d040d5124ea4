"""The records on a domain's topics: what mills have signed, what was judged, and where slices of the window begin.

docs/format.md has their bytes. Places name a raw partition by one number, its `source_number`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from struct import Struct, error
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.errors import DamagedError, DifferenceError, SettingsError
from tokenmill.recipe import canonical_json

from ..milling.duplicates.signatures import PLACE, REASONS, Deduplication, Hashes, deduplication_of
from ..settings import Domain

Integers: TypeAlias = npt.NDArray[np.int64]
Kinds: TypeAlias = npt.NDArray[np.uint8]
Source: TypeAlias = tuple[int, int]
"""The number of a raw topic in its domain, and a partition."""
SIGNED_MAGIC: Final = b"TMS1"
JUDGED_MAGIC: Final = b"TMV1"
FINGERPRINT_BYTES: Final = 16
DOMAIN_KEY: Final = b"domain"
SLICE_KEY: Final = b"slice"
NO_CHAIN: Final = bytes(16)
"""Before the first verdict on a partition."""
REMEMBERED: Final = 1024
"""Ends of ranges that are remembered, to be compared with what comes again: far more than a writer has on its way."""
TWO_HISTORIES: Final = (
    "the verdicts hold two histories, as when the signature log lost acknowledged messages: begin a new domain with a "
    "new stream_suffix"
)
_SIGNED: Final = Struct("<4s16sIIqqqIII")
_PLACE: Final = Struct("<q")
_JUDGED: Final = Struct("<qqqIqI16s")


def source_number(source: Source) -> int:
    """Return the number by which a place names a raw partition."""
    return source[0] << 32 | source[1]


def place_name(domain: Domain, source: int, offset: int) -> str:
    """Return a place as people give it: ``topic/partition/offset``."""
    return f"{domain.raw_topics[source >> 32]}/{source & 0xFFFFFFFF}/{offset}"


class Remembered(NamedTuple):
    """The last record of a range, by which a raw log is noticed that was rewritten."""

    offset: int = -1
    """-1: the range has no record."""
    crc: int = 0
    """Its `tokenmill.wire.chain.record_crc`."""


@dataclass(frozen=True, slots=True)
class SignedRange:
    """The documents at the offsets ``[begin, end)`` of a raw partition that the steps keep, and their hashes."""

    source: Source
    begin: int
    end: int
    remembered: Remembered
    offsets: Integers
    """Shape ``[documents]``, ascending."""
    hashes: Hashes
    """Shape ``[documents, width]``, as `tokenmill.app.milling.duplicates.signatures.sign` returns them."""

    def since(self, offset: int) -> Self:
        """Return the part from an offset on."""
        first = int(np.searchsorted(self.offsets, offset))
        begin = max(self.begin, offset)
        return replace(self, begin=begin, offsets=self.offsets[first:], hashes=self.hashes[first:])

    @property
    def places(self) -> Hashes:
        """Where each document is; shape ``[documents, 2]``."""
        places = np.empty((len(self.offsets), PLACE), np.uint64)
        places[:, 0], places[:, 1] = source_number(self.source), self.offsets
        return places

    def pack(self, fingerprint: bytes) -> bytes:
        """Return the message's bytes."""
        count, width = self.hashes.shape
        head = _SIGNED.pack(
            *(SIGNED_MAGIC, fingerprint, *self.source, self.begin, self.end, *self.remembered, count, width)
        )
        return head + self.offsets.astype("<i8").tobytes() + self.hashes.astype("<u8").tobytes()

    @classmethod
    def unpack(cls, value: bytes | None, fingerprint: bytes, width: int, topics: int) -> Self:
        """Return what `pack` made bytes of, in a domain with so many ``topics`` and hashes in a signature.

        Raises DamagedError where they are none of this domain.
        """
        try:
            magic, domain, topic, partition, begin, end, *last, count, wide = _SIGNED.unpack_from(value or b"")
        except error:
            raise DamagedError("it is no signed range") from None
        if (magic, domain, wide) != (SIGNED_MAGIC, fingerprint, width) or topic >= topics:
            raise DamagedError("it is no signed range of this domain")
        if len(value or b"") != _SIGNED.size + 8 * count * (1 + width) or not 0 <= begin < end:
            raise DamagedError("it is a signed range of another length than it says")
        offsets = np.frombuffer(value or b"", "<i8", count, _SIGNED.size)
        hashes = np.frombuffer(value or b"", "<u8", count * width, _SIGNED.size + 8 * count)
        return cls((topic, partition), begin, end, Remembered(*last), offsets, hashes.reshape(count, width))


class VerdictEnd(NamedTuple):
    """How far a raw partition is judged."""

    next_offset: int = 0
    chain: bytes = NO_CHAIN
    """The hash over all verdicts on it."""


@dataclass(frozen=True, slots=True)
class JudgedRange:
    """Which documents at the offsets ``[begin, end)`` of a raw partition are duplicates, and of which ones."""

    begin: int
    end: int
    remembered: Remembered
    signature: int
    """The offset of the message, on the signature log, whose documents these are."""
    offsets: Integers
    """Of the duplicates; shape ``[duplicates]``, ascending."""
    kinds: Kinds
    """Each one's place in `REASONS`; shape ``[duplicates]``."""
    places: Hashes
    """Source and offset of the kept document that each one resembles; shape ``[duplicates, 2]``."""
    before: bytes
    """The hash over all verdicts on the partition before these."""

    @property
    def after(self) -> VerdictEnd:
        """How far the partition is judged with these."""
        return VerdictEnd(self.end, xxhash.xxh3_128_digest(self._body()))

    def pack(self, fingerprint: bytes, place: int) -> bytes:
        """Return the bytes of a message that counts at the offset ``place`` of its log alone."""
        return JUDGED_MAGIC + fingerprint + _PLACE.pack(place) + self._body()

    def _body(self) -> bytes:
        numbers = (self.begin, self.end, *self.remembered, self.signature, len(self.offsets))
        arrays = (self.offsets.astype("<i8"), self.places.astype("<u8"), self.kinds)
        return _JUDGED.pack(*numbers, self.before) + b"".join(array.tobytes() for array in arrays)

    @classmethod
    def unpack(cls, value: bytes | None, fingerprint: bytes, place: int, topics: int) -> Self:
        """Return what `pack` made bytes of, in a domain with so many ``topics``.

        Raises DamagedError where they are none of this domain, or of a writer that did not know the log's end.
        """
        head = JUDGED_MAGIC + fingerprint
        at = len(head) + _PLACE.size + _JUDGED.size
        if value is None or not value.startswith(head) or len(value) < at:
            raise DamagedError("it is no verdict of this domain")
        if (wanted := _PLACE.unpack_from(value, len(head))[0]) != place:
            raise DamagedError(f"its writer did not know the log's end, and took it for offset {wanted}")
        begin, end, last, crc, signature, count, before = _JUDGED.unpack_from(value, at - _JUDGED.size)
        if len(value) != at + count * (8 + 8 * PLACE + 1) or not 0 <= begin < end:
            raise DamagedError("it is a verdict of another length than it says")
        offsets = np.frombuffer(value, "<i8", count, at)
        places = np.frombuffer(value, "<u8", count * PLACE, at + 8 * count).reshape(count, PLACE)
        kinds = np.frombuffer(value, np.uint8, count, at + 8 * count * (1 + PLACE))
        if not np.isin(kinds, range(1, len(REASONS))).all():
            raise DamagedError("it is a verdict of no kind that there is")
        if (places[:, 0] >> np.uint64(32) >= topics).any():
            raise DamagedError("it names a raw topic that the domain lacks")
        return cls(begin, end, Remembered(last, crc), signature, offsets, kinds, places, before)


class VerdictChain:
    """Which verdicts on a raw partition count: those that continue each other. The same for all who read them."""

    def __init__(self, verdict_end: VerdictEnd | None = None) -> None:
        """Go on where a partition stands; None: where the first verdict that comes begins."""
        self.verdict_end = verdict_end
        self._ends: deque[VerdictEnd] = deque([] if verdict_end is None else [verdict_end], maxlen=REMEMBERED)

    def offer(self, judged: JudgedRange) -> bool:
        """Take the next verdict of the log, and return whether it counts: it is not known, nor behind a hole.

        Raises DifferenceError where another history stands there.
        """
        verdict_end = self.verdict_end if self.verdict_end is not None else VerdictEnd(judged.begin, judged.before)
        after = judged.after
        if judged.begin > verdict_end.next_offset:
            return False
        if after.next_offset <= verdict_end.next_offset:
            if self._ends and after.next_offset >= self._ends[0].next_offset and after not in self._ends:
                raise DifferenceError(TWO_HISTORIES)
            return False
        if (judged.begin, judged.before) != verdict_end:
            raise DifferenceError(TWO_HISTORIES)
        self.verdict_end = after
        self._ends.append(after)
        return True


@dataclass(frozen=True, slots=True)
class SliceStart:
    """Where a slice of the window begins: what is known before the message that has its first document."""

    number: int = 0
    signature: int = 0
    """The offset of that message on the signature log."""
    kept: int = 0
    """Documents that were kept before it."""
    verdict_ends: Mapping[Source, VerdictEnd] = field(default_factory=dict)

    def pack(self, fingerprint: bytes) -> bytes:
        """Return the record's bytes, JSON."""
        verdict_ends = [[*source, at, chain.hex()] for source, (at, chain) in sorted(self.verdict_ends.items())]
        known = {"number": self.number, "signature": self.signature, "kept": self.kept, "verdict_ends": verdict_ends}
        return canonical_json({"domain": fingerprint.hex(), **known})

    @classmethod
    def unpack(cls, value: bytes | None, fingerprint: bytes) -> Self:
        """Return what `pack` made bytes of. Raises DamagedError where they are none of this domain."""
        try:
            known = orjson.loads(value or b"")
            if known["domain"] != fingerprint.hex():
                raise DamagedError("it is a slice of another domain")
            verdict_ends = {
                (topic, one): VerdictEnd(at, bytes.fromhex(told)) for topic, one, at, told in known["verdict_ends"]
            }
            return cls(known["number"], known["signature"], known["kept"], verdict_ends)
        except (ValueError, KeyError, TypeError):
            raise DamagedError("it is no slice") from None


def domain_record(domain: Domain) -> bytes:
    """Return what decides the verdicts of a domain, as its first record has it: canonical JSON."""
    return canonical_json({"raw_topics": domain.raw_topics, "dedup": domain.dedup})


def domain_fingerprint(domain: Domain) -> bytes:
    """Return the hash of a domain's record, which is in all of its messages."""
    return sha256(domain_record(domain)).digest()[:FINGERPRINT_BYTES]


def deduplication_in(domain: Domain) -> Deduplication:
    """Return the parameters of a domain. Raises SettingsError where this version does not know its rules."""
    found = deduplication_of(domain.dedup)
    if found is None:
        raise SettingsError(f'domain {domain.name}: dedup = "none"')
    return found
