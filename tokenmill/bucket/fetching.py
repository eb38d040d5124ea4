"""What counts in a bucket, by numbered heads, and segments out of it (docs/format.md, "In a bucket").

A head, created once and never replaced, names the segments that are there since the head before, and the lines of the
eras all of whose blocks are there with it. Readers take heads from 0 on; the first number that is missing ends the
list. A head adds, and takes nothing back. Each byte of a segment is held against its seal, and the seal against the
head that names it.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.bucket.objects import Bucket, Data, in_lanes
from tokenmill.eras import Era, EraLog
from tokenmill.errors import BucketError, DamagedError, StoreError
from tokenmill.reading.acceptance import Blocks
from tokenmill.recipe import RAW_BYTES_SHA256, canonical_json
from tokenmill.store import StreamInfo
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE
from tokenmill.store.sealing import BLOCK_ROW, Manifest, Rows, chain_after, scan
from tokenmill.untrusted import parse_json

FOLDER: Final = "heads"
HEADS_AT_ONCE: Final = 32
"""A thousand take less than 2 seconds from a bucket that is 50 ms away."""


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
    segments: dict[tuple[int, int], BucketSegment] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    """The first block of each partition."""
    stops: dict[int, int] = field(default_factory=dict)
    """The number after its last block."""
    eras: list[Era] = field(default_factory=list)
    """All eras from 0 on whose blocks are there."""

    def __post_init__(self) -> None:
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
        """Take all heads that the bucket has since; return how many. Raises BucketError where one is gone, or none."""
        known = self.next_number
        after = self.path(known - 2) if known > 1 else None
        names = bucket.names(f"{self.info.name}/{FOLDER}", after)
        if known and self.path(known - 1) not in names:
            raise BucketError(
                f"{bucket.address}/{self.path(known - 1)} was there, and is not any more: an older state of the bucket "
                "was restored, or heads were deleted. Restore them, or begin with another prefix"
            )
        new = [name for number, name in enumerate(names[1:] if known else names, known) if name == self.path(number)]
        with ThreadPoolExecutor(HEADS_AT_ONCE, "heads") as pool:
            for begin in range(0, len(new), HEADS_AT_ONCE):
                part = new[begin : begin + HEADS_AT_ONCE]
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


LANES: Final = 4
"""Segments that are fetched at once; each is in memory, 128 MiB of tokens at most."""


class Fetched(NamedTuple):
    """A segment as it came, whose bytes are those that its seal names."""

    segment: BucketSegment
    files: dict[str, Data]
    rows: Rows

    def blocks(self) -> Blocks:
        """Return its blocks."""
        ends = [0, *self.rows["docs_end"].tolist()]
        table = memoryview(self.files["docs"])
        entries = [bytes(table[start:stop]) for start, stop in pairwise(ends)]
        chains = [chain_after(self.rows, number) for number in range(len(self.rows))]
        return Blocks(self.segment.first, memoryview(self.files["bin"]), entries, chains)


def streams_of(bucket: Bucket, *, some: bool = False) -> list[str]:
    """Return the names of the streams in a bucket; raises BucketError where it does not answer, or lacks ``some``."""
    found = [name for name in bucket.folders() if bucket.read(f"{name}/{STREAM_FILE}") is not None]
    if some and not found:
        raise BucketError(f"{bucket.address} holds no stream: check the address, or upload one")
    return found


def stream_of(bucket: Bucket, stream: str) -> StreamInfo:
    """Return the description of a stream in a bucket. Raises BucketError where there is none, or it is none."""
    data = bucket.read(f"{stream}/{STREAM_FILE}")
    if data is None:
        raise BucketError(f"{bucket.address} holds no stream {stream!r}: check both names, and whether it was uploaded")
    try:
        return StreamInfo.decode(bytes(data))
    except (StoreError, DamagedError) as error:
        raise BucketError(f"{bucket.address}/{stream}/{STREAM_FILE} is no description of a stream: {error}") from error


def tokenizer_of(bucket: Bucket, info: StreamInfo) -> bytes | None:
    """Return the tokenizer file of a stream, None if it has none; raises BucketError where it is not the recipe's."""
    digest = info.recipe.get("tokenizer_sha256")
    data = None if digest == RAW_BYTES_SHA256 else bucket.read(f"{info.name}/{TOKENIZER_FILE}")
    if data is not None and digest and sha256(data).hexdigest() != digest:
        raise BucketError(
            f"{bucket.address}/{info.name}/{TOKENIZER_FILE} is not the stream's (SHA-256 {digest}): restore it"
        )
    return None if data is None else bytes(data)


class RemoteSegment:
    """A segment that a head names; each of its files is held against its seal, and the seal against the head."""

    def __init__(self, bucket: Bucket, info: StreamInfo, segment: BucketSegment) -> None:
        self.segment = segment
        self.blocks = segment.stop - segment.first
        whole = self.blocks == info.segment_blocks
        self.seal_end = "json" if whole else "commits"
        self.ends = ("bin", "docs", "index", "idx") if whole else ("bin", "docs")
        self._bucket, self._info = bucket, info
        self._base = f"{info.name}/{segment.partition}/{segment.first:012d}."

    @cached_property
    def seal(self) -> bytes:
        """What seals it; raises as `read`."""
        data = bytes(self.unchecked(self.seal_end))
        if sha256(data).hexdigest() != self.segment.digest:
            raise self._wrong(self.seal_end, "its SHA-256 is not the one in the head")
        return data

    @cached_property
    def manifest(self) -> Manifest | None:
        """Its manifest; None where it is short."""
        return Manifest.decode(self.seal) if self.seal_end == "json" else None

    def read(self, end: str) -> Data:
        """Fetch a file by the end of its name; raises BucketError where it is missing, or not what was uploaded."""
        return self.seal if end == self.seal_end else self.checked(end, self.unchecked(end))

    def checked(self, end: str, data: Data) -> Data:
        """Return what was fetched of a file, if it is what the seal says; raises as `read`."""
        length, crc = self._wanted(end)
        if crc is not None and crc32(data) != crc:
            raise self._wrong(end, "its CRC is not the one in the manifest")
        if length is not None and len(data) != length:
            raise self._wrong(end, "it has another length")
        return data

    def _wanted(self, end: str) -> tuple[int | None, int | None]:
        """Return the length and the CRC of a file, as far as the seal says them."""
        tokens, seal = self.blocks * self._info.block_bytes, self.manifest
        if seal is not None:
            return {
                "bin": (tokens, seal.bin_crc32),
                "docs": (seal.docs_bytes, seal.docs_crc32),
                "index": (self.blocks * BLOCK_ROW.itemsize, seal.index_crc32),
            }.get(end, (None, None))
        return (tokens if end == "bin" else int(self.short_rows["docs_end"][-1])), None

    @property
    def short_rows(self) -> Rows:
        """The rows of its blocks where it is short; raises as `read`."""
        info = self._info
        rows = scan(self.seal, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).rows
        if len(rows) != self.blocks:
            raise self._wrong(self.seal_end, "it has another length")
        return rows

    def unchecked(self, end: str) -> Data:
        """Fetch a file, whatever is in it. Raises BucketError where it is missing, or cannot be read."""
        data = self._bucket.read(self._base + end)
        if data is None:
            raise BucketError(f"{self._bucket.address}/{self._base}{end} is missing, and a head names it: restore it")
        return data

    def _wrong(self, end: str, why: str) -> BucketError:
        return BucketError(
            f"{self._bucket.address}/{self._base}{end} is not what was uploaded ({why}): restore it, or read another "
            "store"
        )


def fetch(bucket: Bucket, info: StreamInfo, segment: BucketSegment) -> Fetched:
    """Fetch a segment that a head names, its files at once; raises as `RemoteSegment.read`."""
    remote = RemoteSegment(bucket, info, segment)
    with ThreadPoolExecutor(len(remote.ends), "fetch") as pool:
        coming = {end: pool.submit(remote.unchecked, end) for end in remote.ends}
        seal = remote.seal
        files = {end: remote.checked(end, data.result()) for end, data in coming.items()} | {remote.seal_end: seal}
    rows = remote.short_rows if remote.manifest is None else np.frombuffer(files["index"], BLOCK_ROW)
    return Fetched(segment, files, rows)


def fetch_all(bucket: Bucket, info: StreamInfo, segments: Iterable[BucketSegment]) -> Iterator[Fetched]:
    """Fetch segments, `LANES` at once, and yield them in their order; raises as `fetch`."""
    return in_lanes(partial(fetch, bucket, info), segments, LANES)
