"""Streams of a store to a bucket, and a full store out of a bucket (docs/format.md, "In a bucket").

An upload brings data, seals, and then a head that makes them count. A segment is uploaded once all its blocks belong to
eras that are trainable in the store: an era's chain hashes pin them, so no store has others. Killed at any moment, the
next upload goes on after the last head; what was put behind it is there already, and is compared. Any number of
uploads may run at once, from any stores of the stream: a head's number is created by one of them, and the others go on
from that head. Every upload makes the same bytes: where a bucket's segments begin and end is a function of the stream
alone (`StreamInfo.in_bucket`).

A mirror (``tokenmill mirror --from``) is written by the store's own writer. Every block is held against the hashes of
its chain and of its eras before it counts. Killed at any moment, the next start goes on with the block after the last
one that was committed.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, lru_cache, partial
from hashlib import sha256
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import structlog
from zlib_ng.zlib_ng import crc32

from tokenmill.bucket.cache import CacheFolder
from tokenmill.bucket.objects import (
    Bucket,
    BucketSegment,
    Data,
    Fetched,
    Head,
    HeadLog,
    RemoteSegment,
    fetch_all,
    in_lanes,
    stream_of,
    streams_of,
    tokenizer_of,
)
from tokenmill.eras import Era
from tokenmill.errors import BucketError, DamagedError, DifferenceError, DiskError
from tokenmill.reading import Blocks
from tokenmill.store import EraWriter, PartitionReader, PartitionWriter, Store, open_eras, open_partition
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE, comparing
from tokenmill.store.sealing import UNKNOWN, Commit, DataCrcs, Manifest, Rows, chain_after, entry_span, megatron_index
from tokenmill.store.store import Start, StreamInfo, read_stream, read_tokenizer
from tokenmill.wire.chain import roll

from .segments.mirror import CheckpointKeeper, MirroredStream
from .tasks import Backoff, beside, in_thread

log = structlog.get_logger(__name__)


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
        self._reader = cache(partial(open_partition, store, stream))
        self._done_with = -1  # how many eras were trainable when there was nothing more to upload

    def begin(self) -> None:
        """Let the bucket be probed, and hold what describes the stream; BucketError where it cannot, or has others."""
        self._bucket.prepare()
        if self._tokenizer is not None:
            self._bucket.require(f"{self.stream}/{TOKENIZER_FILE}", self._tokenizer)
        self._require_stream(self._bucket.create(f"{self.stream}/{STREAM_FILE}", self.heads.info.encode()))

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

    def _wanted(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield what the bucket lacks of the first eras: partition, first block, block after the last; era by era."""
        partitions = range(len(self._era(count - 1).ranges) if count else 0)
        for _, partition, first, stop in merge(*(self._wanted_of(partition, count) for partition in partitions)):
            yield partition, first, stop

    def _wanted_of(self, partition: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        def reached(number: int) -> int:
            ranges = self._era(number).ranges
            return ranges[partition].stop if partition < len(ranges) else 0

        last, size = self._era(count - 1), self.heads.info.segment_blocks
        held = self._reader(partition).first_block
        first = self.heads.stops.get(partition, -(-held // size) * size)
        if first < held:
            raise BucketError(
                f"{self._store} begins at block {held} of partition {partition} of {self.stream}, and the bucket needs "
                f"block {first} next: upload from a store that still holds it, or to another prefix"
            )
        while first < (stop := min(first + size, last.ranges[partition].stop)) and (stop == first + size or last.end):
            era = bisect_right(range(count), first, key=reached)  # that holds the first block; count: behind them all
            yield era, partition, first, stop
            first = stop

    def _complete(self, count: int, stops: dict[int, int]) -> Sequence[Era]:
        """Return the eras behind the last head's that segments up to ``stops`` complete: 1024, about 1 MiB of lines."""
        found: list[Era] = []
        size = 0
        for number in range(len(self.heads.eras), min(count, len(self.heads.eras) + 1024)):
            era = self._era(number)
            if size >= 1 << 20 or era.lacks(stops):
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


class StreamCopy:
    """Brings one stream of a bucket into a store; holds the locks of its partitions until `close`."""

    def __init__(self, store: Store, stream: str, bucket: Bucket) -> None:
        """Let the store have the stream, and lock its eras.

        Raises:
            BucketError: the bucket holds no such stream, or does not answer.
            FingerprintError: the store holds a stream of that name that was made with other settings.
            LockedError, DamagedError, DiskError: as `EraWriter.open`.
        """
        info = stream_of(bucket, stream)
        self.heads: Final = HeadLog(info)
        self._stream = stream
        self._store = store
        self._bucket = bucket
        self._local = store.add_stream(info.in_stores(), tokenizer_of(bucket, info))
        self._open = ExitStack()
        self._writers: dict[int, PartitionWriter] = {}
        self._reader = cache(partial(open_partition, store.path, stream))
        self._eras = self._open.enter_context(EraWriter.open(store, stream))

    def close(self) -> None:
        """Let other processes write to the stream."""
        self._open.close()

    def copy(self, progress: Callable[[], object]) -> None:
        """Bring all that the bucket's heads name now; ``progress`` is called after each segment.

        Raises BucketError where the bucket does not answer, or something in it is not what was uploaded;
        DifferenceError where the store holds other blocks or eras; and as the store's writers do.
        """
        self.heads.look(self._bucket)
        last, known = self._eras.last, self.heads.eras
        if last is not None and last.number < len(known) and last.hash != known[last.number].hash:
            raise DifferenceError(
                f"{self._store.path} and {self._bucket.address} have different eras of {self._stream} up to era "
                f"{last.number}: mirror into a new store"
            )
        segments = self.heads.segments.values()
        wanted = [one for one in segments if self._writer(one.partition).next_block < one.stop]
        for fetched in fetch_all(self._bucket, self.heads.info, wanted):
            self._append(self._writer(fetched.segment.partition), fetched)
            self._bring_eras()
            progress()
        self._bring_eras()

    def measure(self) -> MirroredStream:
        """Return what the store has, and what it lacks of what the heads name."""
        stops = self.heads.stops
        blocks = sum(max(0, stop - self._reached(number)) for number, stop in stops.items())
        return MirroredStream(
            stream=self._stream,
            blocks=blocks,
            bytes=blocks * self._local.block_bytes,
            eras=max(0, len(self.heads.eras) - self._eras.next_number),
            stored=sum(writer.next_block for writer in self._writers.values()),
            trainable=self._eras.next_number,
            stopped_by=(),
        )

    def _writer(self, partition: int) -> PartitionWriter:
        if partition not in self._writers:
            writer = PartitionWriter.open(self._store, self._stream, partition)
            self._writers[partition] = self._open.enter_context(writer)
        return self._writers[partition]

    def _reached(self, partition: int) -> int:
        writer = self._writers.get(partition)
        return 0 if writer is None else writer.next_block

    def _append(self, writer: PartitionWriter, fetched: Fetched) -> None:
        """Append what the store lacks of a segment; in a store that begins, only from a border of its segments on."""
        blocks = fetched.blocks()
        before = writer.chain_before(blocks.first)
        if before is None:  # the bucket's first segment of the partition is not at block 0
            seal = fetched.files.get("json")
            before = None if seal is None else bytes.fromhex(Manifest.decode(bytes(seal)).chain_before)
        if before is None or roll(before, blocks.tokens, blocks.entries) != blocks.chains:
            raise DifferenceError(
                f"the segment {blocks.first} of partition {fetched.segment.partition} of {self._stream} in "
                f"{self._bucket.address} does not continue the blocks in {self._store.path}, or its hashes are not "
                "those of its blocks: mirror into a new store; if it is the same there, restore the bucket"
            )
        if writer.next_block < blocks.first:
            start = -(-blocks.first // writer.segment_blocks) * writer.segment_blocks
            if start > blocks.end:
                return
            at = start - blocks.first
            writer.begin(Start(start, blocks.chains[at - 1] if at else before))
        low = writer.next_block - blocks.first
        rest = memoryview(blocks.tokens)[low * self._local.block_bytes :]
        writer.append(Blocks(blocks.first + low, rest, blocks.entries[low:], blocks.chains[low:]), token_offset=UNKNOWN)
        writer.commit()

    def _bring_eras(self) -> None:
        new = []
        for era in self.heads.eras[self._eras.next_number :]:
            if any(self._reached(number) < part.stop for number, part in enumerate(era.ranges)):
                break
            for number, part in enumerate(era.ranges):
                reader = self._reader(number)
                there = reader.reaches(part.stop) and reader.has_chain_before(part.stop, part.after)
                if part.stop > reader.first_block and not there:
                    raise DifferenceError(
                        f"era {era.number} of {self._stream} names other blocks than {self._bucket.address} has in "
                        f"partition {number} before block {part.stop}: restore the bucket, or mirror from another store"
                    )
            new.append((era, era.number))
        if new:
            self._eras.append(new)


class BucketMirror:
    """Fills a store from a bucket: `run` until it is cancelled, or until the store has all that there was."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        names: Sequence[str] = (),
        *,
        once: bool = False,
        keeper: CheckpointKeeper | None = None,
        progress: Callable[[Sequence[MirroredStream]], None],
    ) -> None:
        """Mirror the streams ``names``, or all, under the caller's lock; ``progress`` is called after each segment."""
        self.behind: list[MirroredStream] = []  # as of the last segment
        self.problems: list[Exception] = []  # none: what a person has to remedy ends `run`
        self._store, self._bucket, self._names = store, bucket, names
        self._once, self._keeper, self._progress = once, keeper, progress
        self._copies: dict[str, StreamCopy] = {}

    async def run(self) -> None:
        """Mirror. With ``once``, raises what stops it; else what fails only now is tried again.

        Raises BucketError where the bucket holds no such stream, or what it holds is not what was uploaded; InputError
        where a state to keep from is none, or one of another stream or fingerprint; TokenMillError as `StreamCopy`.
        """
        try:
            await self._look()
            if self._once:
                if self._keeper is not None:
                    await in_thread(self._keeper.look)
                return
            async with beside(*([] if self._keeper is None else [self._keeper.run()])):
                while True:
                    await asyncio.sleep(5.0)  # each look is one request for each stream
                    await self._look()
        finally:
            self._close()

    async def _look(self) -> None:
        pause = Backoff(1.0, 60.0)
        while True:
            try:
                return await in_thread(self._copy)
            except (BucketError, DiskError) as error:
                if self._once or (isinstance(error, BucketError) and not error.passing):
                    raise
                log.warning("the bucket is taken up again", reason=str(error))
            self._close()
            await asyncio.sleep(pause.next())

    def _copy(self) -> None:
        for name in self._names or streams_of(self._bucket, some=self._once):
            if name not in self._copies:
                self._copies[name] = StreamCopy(self._store, name, self._bucket)
            self._copies[name].copy(self._report)
        self._report()

    def _report(self) -> None:
        self.behind = [copy.measure() for copy in self._copies.values()]
        self._progress(self.behind)

    def _close(self) -> None:
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()


class RunNeeds(NamedTuple):
    """What one pass over a stream, or a mirror of it, takes out of a bucket; bytes are of tokens."""

    eras: int
    segments: int
    requests: int
    bytes: int
    cache: int
    """Bytes of the two eras behind each other that have most segments."""
    first: int
    """Before the first batch."""
    rate: float | None
    """Bytes a second with which each era is there when the one before ends; None: no speed was given."""


def needs_of(bucket: Bucket, stream: str, tokens_per_second: float | None) -> RunNeeds:
    """Return what a run needs that takes so many tokens a second. Raises BucketError as `StreamCopy.copy`."""
    heads = HeadLog(stream_of(bucket, stream))
    heads.look(bucket)
    info, folder = heads.info, CacheFolder(Path(), heads.info)
    cache = first = 0
    rate = 0.0
    before: set[tuple[int, int]] = set()
    seconds = 0.0
    for era in heads.eras:
        now = {place for place in folder.segments([era]) if place in heads.segments}
        cache = max(cache, len(now | before))
        if tokens_per_second and seconds:
            rate = max(rate, folder.bytes(len(now - before)) / seconds)
        first = first or folder.bytes(len(now))
        before, seconds = now, era.blocks * info.block_tokens / (tokens_per_second or 1)
    files = [len(RemoteSegment(bucket, info, one).ends) + 1 for one in heads.segments.values()]
    size = sum(one.stop - one.first for one in heads.segments.values()) * info.block_bytes
    requests = sum(files) + heads.next_number + 3  # the heads' list, description and tokenizer
    speed = rate if tokens_per_second else None
    return RunNeeds(len(heads.eras), len(files), requests, size, folder.bytes(cache), first, speed)
