"""A full store out of a bucket, by the store's own writer: ``tokenmill mirror --from``, and with ``--dry-run``.

Every block is held against the hashes of its chain and of its eras before it counts. Killed at any moment, the next
start goes on with the block after the last one that was committed.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from tokenmill.bucket.cache import CacheFolder
from tokenmill.bucket.fetching import Fetched, HeadLog, RemoteSegment, fetch_all, stream_of, streams_of, tokenizer_of
from tokenmill.bucket.objects import Bucket
from tokenmill.errors import BucketError, DifferenceError, DiskError
from tokenmill.reading.acceptance import Blocks
from tokenmill.store import EraWriter, PartitionReader, PartitionWriter, Start, Store, open_partition
from tokenmill.store.sealing import UNKNOWN, Manifest
from tokenmill.wire.chain import roll

from ..segments.mirror import CheckpointKeeper, MirroredStream
from ..tasks import Backoff, beside, in_thread

log = structlog.get_logger(__name__)


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
        self._readers: dict[int, PartitionReader] = {}
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
                reader = self._readers.get(number)
                if reader is None:
                    reader = self._readers[number] = open_partition(self._store.path, self._stream, number)
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
