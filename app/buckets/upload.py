"""Bringing a stream of a store into a bucket: data, seals, then a head that makes them count.

A segment is uploaded once all its blocks belong to eras that are trainable in the store: an era's chain hashes pin
them, so no store has others. Killed at any moment, the next upload goes on after the last head; what was put behind it
is there already, and is compared. Any number of uploads may run at once, from any stores of the stream: a head's number
is created by one of them, and the others go on from that head. Every upload makes the same bytes: where a bucket's
segments begin and end is a function of the stream alone (`StreamInfo.in_bucket`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.bucket.fetching import BucketSegment, Head, HeadLog, stream_of
from tokenmill.bucket.objects import Bucket, Data, in_lanes
from tokenmill.eras import Era
from tokenmill.errors import BucketError, DamagedError, DifferenceError
from tokenmill.store import PartitionReader, StreamInfo, open_eras, open_partition, read_stream, read_tokenizer
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE, comparing
from tokenmill.store.sealing import UNKNOWN, Commit, DataCrcs, Manifest, Rows, chain_after, entry_span, megatron_index


class _SegmentFiles(NamedTuple):
    segment: BucketSegment
    data: dict[str, Data]
    """By the ends of their names, in the order in which they are created, before the seal; may be views of files."""
    seal: tuple[str, bytes]


def _segment_files(reader: PartitionReader, info: StreamInfo, first: int, stop: int) -> _SegmentFiles:
    """Return the files of the bucket's segment ``[first, stop)``, checked against the store's CRCs.

    One with fewer blocks than ``info`` says has a commit log of one record in place of manifest and indexes.
    """
    parts = list(_parts(reader, first, stop))
    tokens = _joined([part.tokens for part in parts])
    documents = _joined([part.documents for part in parts])
    rows: Rows = np.concatenate([part.rows for part in parts])
    starts = np.cumsum([0, *(len(part.documents) for part in parts)])[:-1]
    rows["docs_end"] += np.repeat(starts, [len(part.rows) for part in parts]).astype(np.uint64)
    data: dict[str, Data] = {"bin": tokens, "docs": documents}
    if stop - first < info.segment_blocks:
        record = Commit(len(rows), len(tokens), len(documents), chain_after(rows, -1), UNKNOWN, rows)
        seal = ("commits", record.encode())
    else:
        data |= {"index": rows.tobytes(), "idx": megatron_index(len(rows), info.block_tokens, info.dtype)}
        before, crcs = reader.chain_before(first) or b"", DataCrcs(crc32(tokens), crc32(documents))
        manifest = Manifest.of(info, reader.partition, first, rows, before=before, data=crcs)
        seal = ("json", manifest.encode())
    return _SegmentFiles(BucketSegment(reader.partition, first, stop, sha256(seal[1]).hexdigest()), data, seal)


class _Part(NamedTuple):
    """What one segment of the store has of a segment in the bucket."""

    tokens: memoryview
    documents: memoryview
    rows: Rows  # their ``docs_end`` is counted from the beginning of ``documents``


def _parts(reader: PartitionReader, first: int, stop: int) -> Iterator[_Part]:
    while first < stop:
        segment, low = reader.locate(first)
        high = min(segment.blocks, low + stop - first)
        rows = segment.rows[low:high].copy()
        start, end = entry_span(segment.rows, low)[0], int(rows["docs_end"][-1])
        rows["docs_end"] -= np.uint64(start)
        part = _Part(segment.tokens[low:high].data.cast("B"), segment.documents(start, end), rows)
        size = len(part.tokens) // len(rows)
        place = f"{segment.paths.tokens.parent}, blocks {first} to {first + high - low - 1}"
        for number, row in enumerate(rows):
            start, end = entry_span(rows, number)
            found = crc32(part.tokens[number * size : (number + 1) * size]), crc32(part.documents[start:end])
            if found != (row["tokens_crc"], row["entry_crc"]):
                why = f"{place}: block {number} of these is not what was committed"
                raise DamagedError(why, "`tokenmill repair` it")
        yield part
        first += high - low


def _joined(parts: list[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


class Lacking(NamedTuple):
    """What a store has of a stream and could upload, and the bucket lacks."""

    segments: int
    bytes: int
    eras: int
    """Those that become complete, and those that wait for their last segments to be full."""


class Upload:
    """Brings one stream of a store into a bucket, `step` by `step`."""

    def __init__(self, store: Path, stream: str, bucket: Bucket, *, lanes: int = 4) -> None:
        """Open the stream; each lane has the largest object of a segment in memory, 128 MiB at most."""
        self.stream: Final = stream
        local = read_stream(store, stream)
        self.heads: Final = HeadLog(local.in_bucket())
        self.segments = self.bytes = 0  # uploaded by this object, or found to be there; bytes of their tokens
        self._store = store
        self._bucket = bucket
        self._lanes = lanes
        self._tokenizer = read_tokenizer(store, local)
        self._eras = open_eras(store, stream)
        self._era = lru_cache(256)(self._eras.era)  # each partition looks at the same ones to find a block
        self._readers: dict[int, PartitionReader] = {}
        self._done_with = -1  # how many eras were trainable when there was nothing more to upload

    def begin(self) -> None:
        """Let the bucket be probed, and hold what describes the stream; BucketError where it cannot, or has others."""
        self._bucket.prepare()
        if self._tokenizer is not None:
            self._bucket.require(f"{self.stream}/{TOKENIZER_FILE}", self._tokenizer)
        description = self.heads.info.encode()
        self._require_stream(self._bucket.create(f"{self.stream}/{STREAM_FILE}", description))

    def _require_stream(self, same: bool) -> None:  # noqa: FBT001 - an answer
        if not same:
            raise BucketError(
                f"{self._bucket.address} holds another stream {self.stream}: it was made with other settings. Upload "
                "to another prefix"
            )

    def look(self) -> Lacking:
        """Take the bucket's heads, and return what `step` would upload now. Nothing is put. Raises as `step`."""
        found = self._bucket.read(f"{self.stream}/{STREAM_FILE}")
        self._require_stream(found is None or bytes(found) == self.heads.info.encode())
        self.heads.look(self._bucket)
        count = self._trainable()
        size = self.heads.info.block_bytes
        wanted = [(stop - first) * size for _, first, stop in self._wanted(count)]
        return Lacking(len(wanted), sum(wanted), max(0, count - len(self.heads.eras)))

    def covered(self) -> dict[int, int]:
        """Return up to which block the newest head has all of the store's, by partition, if it begins before it."""
        stream_of(self._bucket, self.stream)  # a wrong address has nothing, and says so
        self.look()
        begins, stops = self.heads.begins, self.heads.stops
        return {number: stops[number] for number in stops if begins[number] <= self._reader(number).first_block}

    def step(self) -> bool:
        """Upload the next segments and create a head that names them; return whether there was anything to do.

        The bucket is asked for nothing where the store has nothing that the heads known so far lack. Raises BucketError
        where the bucket refuses, does not answer, or has other objects; or the store does not hold the blocks any more
        that the bucket needs next; DifferenceError where store and bucket have different eras, or the store has other
        blocks than its eras name; DamagedError where the store is damaged.
        """
        heads = self.heads
        count = self._trainable()
        if count == self._done_with:
            return False
        if next(self._wanted(count), None) is None and not self._complete(count, heads.stops):
            self._done_with = count
            return False
        if heads.look(self._bucket):
            return True  # another upload was here
        wanted = islice(self._wanted(count), 16)  # what a kill makes the next upload compare
        read = (_segment_files(self._reader(number), heads.info, first, stop) for number, first, stop in wanted)
        segments: list[BucketSegment] = []
        for files in in_lanes(self._put, read, self._lanes):
            segments.append(files.segment)
            self.segments += 1
            self.bytes += len(files.data["bin"])
        eras = self._complete(count, heads.stops | {one.partition: one.stop for one in segments})
        lines = tuple(era.pack().decode() for era in eras)
        head = Head(heads.next_number, heads.before, tuple(segments), lines).encode()
        if self._bucket.create(heads.path(heads.next_number), head):
            heads.add(head)
        return True  # else another upload was quicker: the next step takes its head

    def _trainable(self) -> int:
        """Return how many eras are trainable in the store: their blocks are there, and are those that they name."""
        self._eras.refresh()
        count = bisect_left(range(self._eras.eras), x=True, key=lambda number: self._lacks(self._era(number)))
        common = min(count, len(self.heads.eras))
        if common and self._eras.hash_of(common - 1) != self.heads.eras[common - 1].hash:
            raise DifferenceError(
                f"{self._store} and {self._bucket.address} have different eras of {self.stream} up to era "
                f"{common - 1}: {comparing(self._store, self.stream)}; nothing more was uploaded"
            )
        for partition, part in enumerate(self._era(count - 1).ranges if count else ()):
            reader = self._reader(partition)
            if part.stop > reader.first_block and not reader.has_chain_before(part.stop, part.after):
                raise DifferenceError(
                    f"{self._store} has other blocks of {self.stream} than era {count - 1} names, in partition "
                    f"{partition} before block {part.stop}: {comparing(self._store, self.stream)}"
                )
        return count

    def _lacks(self, era: Era) -> bool:
        """Whether blocks of an era are missing; then they are of all later ones."""
        return not all(self._reader(partition).reaches(part.stop) for partition, part in enumerate(era.ranges))

    def _reader(self, partition: int) -> PartitionReader:
        if partition not in self._readers:
            self._readers[partition] = open_partition(self._store, self.stream, partition)
        return self._readers[partition]

    def _wanted(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield what the bucket lacks of the first eras: partition, first block, block after the last; era by era."""
        partitions = range(len(self._era(count - 1).ranges) if count else 0)
        for _, partition, first, stop in merge(*(self._wanted_of(partition, count) for partition in partitions)):
            yield partition, first, stop

    def _wanted_of(self, partition: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        last, size = self._era(count - 1), self.heads.info.segment_blocks
        held = self._reader(partition).first_block
        first = self.heads.stops.get(partition, -(-held // size) * size)
        if first < held:
            raise BucketError(
                f"{self._store} begins at block {held} of partition {partition} of {self.stream}, and the bucket needs "
                f"block {first} next: upload from a store that still holds it, or to another prefix"
            )
        while first < (stop := min(first + size, last.ranges[partition].stop)) and (stop == first + size or last.end):
            yield self._era_of(partition, first, count), partition, first, stop
            first = stop

    def _era_of(self, partition: int, block: int, count: int) -> int:
        """Return which of the first eras holds a block of a partition; ``count`` where it is behind them."""

        def reached(number: int) -> int:
            ranges = self._era(number).ranges
            return ranges[partition].stop if partition < len(ranges) else 0

        return bisect_right(range(count), block, key=reached)

    def _complete(self, count: int, stops: dict[int, int]) -> Sequence[Era]:
        """Return the eras behind the last head's that segments up to ``stops`` complete: 1024, about 1 MiB of lines."""
        found: list[Era] = []
        size = 0
        for number in range(len(self.heads.eras), min(count, len(self.heads.eras) + 1024)):
            era = self._era(number)
            if size >= 1 << 20 or not self.heads.covers(era, stops):
                break
            found.append(era)
            size += len(era.pack())
        return found

    def _put(self, files: _SegmentFiles) -> _SegmentFiles:
        """Upload a segment, the seal last; one whose seal is there is there."""
        base = f"{self.stream}/{files.segment.partition}/{files.segment.first:012d}."
        end, seal = files.seal
        if self._bucket.read(base + end) is None:
            for name, data in files.data.items():
                self._bucket.require(base + name, data)
        self._bucket.require(base + end, seal)
        return files
