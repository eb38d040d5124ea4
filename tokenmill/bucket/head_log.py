"""Numbered heads: what counts in a bucket, and in which order it came (docs/format.md, "In a bucket").

A head, created once and never replaced, names the segments that are there since the head before, and the lines of the
eras all of whose blocks are there with it. Readers take heads from 0 on; the first number that is missing ends the
list. A head adds, and takes nothing back.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from tokenmill.bucket.objects import Bucket, Data
from tokenmill.canonical import canonical_json
from tokenmill.eras import Era, EraLog
from tokenmill.errors import BucketError
from tokenmill.store import StreamInfo
from tokenmill.untrusted import parse_json

FOLDER: Final = "heads"
LANES: Final = 32
"""Heads that are read at once: a thousand take less than 2 seconds from a bucket that is 50 ms away."""


class BucketSegment(NamedTuple):
    """A segment in a bucket, the blocks ``[first, stop)`` of a partition."""

    partition: int
    first: int
    stop: int
    """Number after its last block: so many later, or fewer where the stream ended."""
    digest: str
    """SHA-256 of its manifest, or of its commit log where it is short; hexadecimal."""


@dataclass(frozen=True, slots=True)
class Head:
    """One head."""

    number: int
    before: str
    """SHA-256 of the head before; of ``stream.json`` before the first."""
    segments: tuple[BucketSegment, ...]
    eras: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the head's bytes."""
        values = {"format": 1, "head": self.number, "before": self.before}
        return canonical_json({**values, "segments": self.segments, "eras": self.eras}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the head that `encode` made these bytes of. Raises ValueError where they are none."""
        try:
            values: Any = parse_json(data)
            segments = tuple(BucketSegment(*one) for one in values["segments"])
            head = cls(values["head"], values["before"], segments, tuple(values["eras"]))
            if head.encode() != data:
                raise ValueError("it is not spelled as it was written")
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"it is none ({error!r})") from error
        return head


@dataclass
class HeadLog:
    """The heads of a stream up to one, and what they say together; `add` and `look` take those that follow."""

    info: StreamInfo
    next_number: int = 0
    before: str = ""
    """What the next head must name."""
    segments: dict[tuple[int, int], BucketSegment] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    """The first block of each partition."""
    stops: dict[int, int] = field(default_factory=dict)
    """The number after its last block."""
    eras: list[Era] = field(default_factory=list)
    """All eras from 0 on whose blocks are there."""

    def __post_init__(self) -> None:
        """Begin before head 0."""
        self.before = self.before or sha256(self.info.encode()).hexdigest()
        self._log = EraLog(self.info.fingerprint)

    def covers(self, era: Era, stops: dict[int, int] | None = None) -> bool:
        """Return whether all blocks of an era are there, with the partitions reaching ``stops``, or as they do now."""
        reached = self.stops if stops is None else stops
        return all(part.stop <= reached.get(number, 0) for number, part in enumerate(era.ranges))

    def add(self, data: bytes) -> Head:
        """Take the next head; raises ValueError, and takes nothing, where it does not continue the ones before."""
        head = Head.decode(data)
        if (head.number, head.before) != (self.next_number, self.before):
            raise ValueError(f"it does not continue head {self.next_number - 1}")
        stops, begins = dict(self.stops), dict(self.begins)
        size = self.info.segment_blocks
        for partition, first, stop, _ in head.segments:
            if not 0 < stop - first <= size or first % size or first < 0 or first != stops.get(partition, first):
                raise ValueError(f"its segment {first} of partition {partition} does not follow those before")
            begins.setdefault(partition, first)
            stops[partition] = stop
        log = EraLog(self._log.fingerprint, self._log.last)
        eras = [log.add(line.encode()) for line in head.eras]
        if not all(era is not None and self.covers(era, stops) for era in eras):
            raise ValueError("it names an era that does not follow, or whose blocks are not there")
        self.next_number, self.before, self._log = head.number + 1, sha256(data).hexdigest(), log
        self.stops, self.begins = stops, begins
        self.segments |= {(one.partition, one.first): one for one in head.segments}
        self.eras += [era for era in eras if era is not None]
        return head

    def look(self, bucket: Bucket) -> int:
        """Take all heads that the bucket has since; return how many these are.

        Raises BucketError where one is not there any more, does not continue those before, or cannot be read.
        """
        known = self.next_number
        after = self.path(known - 2) if known > 1 else None
        names = bucket.names(f"{self.info.name}/{FOLDER}", after)
        if known and self.path(known - 1) not in names:
            raise BucketError(
                f"{bucket.address}/{self.path(known - 1)} was there, and is not any more: an older state of the bucket "
                "was restored, or heads were deleted. Restore them, or begin with another prefix"
            )
        new = [name for number, name in enumerate(names[1:] if known else names, known) if name == self.path(number)]
        with ThreadPoolExecutor(LANES, "heads") as pool:
            for begin in range(0, len(new), LANES):
                part = new[begin : begin + LANES]
                for name, data in zip(part, pool.map(bucket.read, part), strict=True):
                    self._take(bucket, name, data)
        return self.next_number - known

    def _take(self, bucket: Bucket, name: str, data: Data | None) -> None:
        if data is None:
            raise BucketError(f"{bucket.address}/{name} was listed, and is not there: look again", passing=True)
        try:
            self.add(bytes(data))
        except ValueError as error:
            raise BucketError(
                f"{bucket.address}/{name} is no head of this stream: {error}. It was changed, or an older state of the "
                "bucket was restored: restore it as it was"
            ) from error

    def path(self, number: int) -> str:
        """Return the name of a head."""
        return f"{self.info.name}/{FOLDER}/{number:08d}"
