"""The writer of one partition: recovers it, appends accepted blocks, commits them, and seals what is full.

Recovery is run by the holder of the partition's lock before anything is appended. It keeps the longest committed
prefix, cuts off only what was never committed, and refuses damage to what was.
"""

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import GapError, InputError, StoreError
from tokenmill.reading import Blocks
from tokenmill.store import layout, sealing
from tokenmill.store.reader import PartitionReader
from tokenmill.store.store import Start, Store, StreamInfo, read_start, read_stream, unlink_below, write_start
from tokenmill.untrusted import open_regular, read_regular, regular_file
from tokenmill.wire.chain import next_hash


@dataclass(frozen=True, slots=True)
class Recovered:
    """An unsealed segment as recovery left it; with no rows, it may have no files yet."""

    paths: layout.SegmentPaths
    chain_before: bytes
    rows: sealing.Rows
    log_bytes: int
    source_offset: int
    """Of the last commit record, also where that is the record of the segment before; -1 if unknown."""
    truncated_bytes: int
    begun: bool = False
    """Whether there are segments before this one."""


def recover_partition(directory: Path, info: StreamInfo, partition: int) -> Recovered:
    """Return the segment in which a partition goes on; what it holds, and all before it, is durable.

    Full segments without a manifest are sealed, and retired ones that are still there are unlinked. Costs a listing and
    the last segments. Raises DamagedError where committed bytes are missing or changed, or another stream's.
    """
    names = set(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
    if (ready := directory / layout.REPAIR_DIRECTORY / layout.READY_FILE).exists():
        raise layout.damaged(ready, "a repair was cut off; what it rebuilt is not all in its place yet")
    start = read_start(directory, info, partition)
    if start.block:
        layout.sync_directory(directory)  # its writer may have died before the sync; what follows depends on it
    for name in names:
        # `retire` takes no lock, and may be writing the start.
        if name.endswith(layout.TEMPORARY) and name != layout.START_FILE + layout.TEMPORARY:
            (directory / name).unlink()
    firsts = layout.segment_firsts(names)
    firsts = firsts[len(unlink_below(directory, firsts, start.block)) :]
    _check_firsts(directory, firsts, info.segment_blocks, start.block)
    for first in firsts:
        paths = layout.SegmentPaths(directory, first)
        if paths.manifest.name in names:
            _check_names(paths, names)
            continue
        found = _recover_segment(paths, info, _chain_before(paths, info, partition, start))
        if len(found.rows) == info.segment_blocks:
            sealing.seal(paths, info, partition, found.rows, found.chain_before)
        elif first != firsts[-1]:
            raise layout.damaged(paths.commits, f"it holds {len(found.rows)} blocks, but later segments exist")
        elif len(found.rows) or first == firsts[0]:
            return replace(found, begun=first != firsts[0])
        else:  # nothing in it yet, so the segment before is the one to go on from
            source_offset = _check_last(directory, firsts[-2], info, partition, start)
            return replace(found, source_offset=source_offset, begun=True)
    paths = layout.SegmentPaths(directory, firsts[-1] + info.segment_blocks if firsts else start.block)
    source_offset = _check_last(directory, firsts[-1], info, partition, start) if firsts else sealing.UNKNOWN
    chain_before = _chain_before(paths, info, partition, start)
    return Recovered(paths, chain_before, np.empty(0, sealing.BLOCK_ROW), 0, source_offset, 0, begun=bool(firsts))


def _recover_segment(paths: layout.SegmentPaths, info: StreamInfo, chain_before: bytes) -> Recovered:
    log, found = read_log(paths, info)
    last = found.commits[-1] if found.commits else None
    rows = found.rows
    if last:
        check_blocks(paths, info, rows, range(last.blocks - len(last.rows), last.blocks))
        check_link(paths, info, rows, chain_before)
    truncated = 0
    for path, wanted in zip((paths.tokens, paths.documents), found.committed_bytes, strict=True):
        if path.exists() and (size := path.stat().st_size) > wanted:  # what no commit covers
            os.truncate(path, wanted)
            truncated += size - wanted
    truncated += _settle_log(paths.commits, log, found)
    return Recovered(paths, chain_before, rows, found.end, last.source_offset if last else sealing.UNKNOWN, truncated)


def read_log(paths: layout.SegmentPaths, info: StreamInfo) -> tuple[bytes, sealing.Scan]:
    """Return an unsealed segment's commit log, and what it says; raises DamagedError where committed bytes miss."""
    sizes = [path.stat().st_size if path.exists() else 0 for path in (paths.tokens, paths.documents)]
    log = read_regular(paths.commits) if paths.commits.exists() else b""
    if any(sizes) and not paths.commits.exists():
        raise layout.damaged(paths.commits, "the commit log is missing")
    found = sealing.scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks)
    if found.damage:
        raise layout.damaged(paths.commits, found.damage)
    for path, size, wanted in zip((paths.tokens, paths.documents), sizes, found.committed_bytes, strict=True):
        if size < wanted:
            raise layout.damaged(path, layout.too_short(path, size, wanted))
    return log, found


def check_blocks(paths: layout.SegmentPaths, info: StreamInfo, rows: sealing.Rows, numbers: range) -> None:
    """Hold some blocks (counted from 0) against a segment's rows; raises DamagedError at the first that differs."""
    with regular_file(paths.tokens) as tokens, regular_file(paths.documents) as documents:
        for number in numbers:
            block = os.pread(tokens.fileno(), info.block_bytes, number * info.block_bytes)
            if crc32(block) != rows["tokens_crc"][number]:
                what = f"block {paths.first + number}, at byte {number * info.block_bytes}, is not what was committed"
                raise layout.damaged(paths.tokens, what)
            start, end = sealing.entry_span(rows, number)
            if crc32(os.pread(documents.fileno(), end - start, start)) != rows["entry_crc"][number]:
                what = f"the entry of block {paths.first + number}, at byte {start}, is not what was committed"
                raise layout.damaged(paths.documents, what)


def continues(paths: layout.SegmentPaths, info: StreamInfo, rows: sealing.Rows, chain_before: bytes) -> bool:
    """Return whether a segment's first block continues a chain; one that fails its CRC proves nothing."""
    with regular_file(paths.tokens) as tokens, regular_file(paths.documents) as documents:
        block, entry = tokens.read(info.block_bytes), documents.read(int(rows["docs_end"][0]))
    whole = (crc32(block), crc32(entry)) == (rows["tokens_crc"][0], rows["entry_crc"][0])
    return not whole or next_hash(chain_before, block, entry) == sealing.chain_after(rows, 0)


def check_link(paths: layout.SegmentPaths, info: StreamInfo, rows: sealing.Rows, chain_before: bytes) -> None:
    """Raise DamagedError where an unsealed segment continues another chain: a commit log does not name its own."""
    if not continues(paths, info, rows, chain_before):
        raise layout.damaged(paths.tokens, f"block {paths.first} does not continue the chain before it")


def _check_firsts(directory: Path, firsts: list[int], segment_blocks: int, start: int) -> None:
    for wanted, first in enumerate(firsts):
        paths = layout.SegmentPaths(directory, first)
        missing = layout.SegmentPaths(directory, start + wanted * segment_blocks)
        if first % segment_blocks:
            raise layout.damaged(paths.tokens, f"it does not begin at a multiple of {segment_blocks} blocks")
        if first != missing.first:
            raise layout.damaged(missing.tokens, f"it is missing, but {paths.tokens.name} exists")


def _check_names(paths: layout.SegmentPaths, names: Collection[str]) -> None:
    for path in (paths.tokens, paths.documents, paths.index, paths.megatron):
        if path.name not in names:
            raise layout.damaged(path, layout.MISSING)


def _chain_before(paths: layout.SegmentPaths, info: StreamInfo, partition: int, start: Start) -> bytes:
    """Return the chain hash before a segment: from the manifest of the one before it."""
    if paths.first == start.block:
        return start.chain
    previous = layout.SegmentPaths(paths.directory, paths.first - info.segment_blocks)
    manifest = sealing.load_manifest(previous, info, partition)
    if manifest is None:
        raise layout.damaged(previous.manifest, "it is missing, and without it the next segment cannot be continued")
    return bytes.fromhex(manifest.chain_after)


def _check_last(directory: Path, first: int, info: StreamInfo, partition: int, start: Start) -> int:
    """Check a sealed segment after which writing goes on; return the source offset of its commit log, if any."""
    paths = layout.SegmentPaths(directory, first)
    manifest = sealing.load_manifest(paths, info, partition)
    if manifest is None:
        raise layout.damaged(paths.manifest, "it vanished while its partition was locked")
    if manifest.chain_before != _chain_before(paths, info, partition, start).hex():
        raise layout.damaged(paths.manifest, "it does not continue the chain before it")
    sealing.check_sizes(paths, manifest)
    rows = sealing.load_index(paths, manifest)
    check_blocks(paths, info, rows, range(len(rows) - 1, len(rows)))
    log = read_regular(paths.commits) if paths.commits.exists() else b""
    commits = sealing.scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).commits
    whole = bool(commits) and commits[-1].chain.hex() == manifest.chain_after
    return commits[-1].source_offset if whole else sealing.UNKNOWN


def _settle_log(path: Path, log: bytes, found: sealing.Scan) -> int:
    """Cut off a record that was never finished, and make the last whole one durable; return the bytes cut off.

    The page cache shows a record whose sync did not return, or failed: written again, it is on the disk.
    """
    if not log:
        return 0
    descriptor = open_regular(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, found.end)
        if found.commits:
            record = found.commits[-1].encode()
            layout.write_at(descriptor, record, found.end - len(record))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(log) - found.end


class PartitionWriter(layout.Closing):
    """The one writer of a partition in a store, from `open` to `close`; not for use by several threads at once.

    When a write or a sync fails, it is closed: what a failed sync left on the disk is unknown, and only a new `open`,
    which recovers, may go on.
    """

    def __init__(self, directory: Path, info: StreamInfo, partition: int, lock: layout.PartitionLock) -> None:
        """Recover the locked directory; callers use `open`."""
        found = recover_partition(directory, info, partition)
        self.source_hint = found.source_offset
        """Offset in the token topic of the message that brought the block before ``next_block``; -1 if unknown.
        A hint: believe it only if that message ends there with the hash ``chain``."""
        self.truncated_bytes = found.truncated_bytes
        self.begun = found.begun or len(found.rows) > 0
        """Whether the partition holds blocks; if not, it may begin later (`begin`)."""
        self.next_block = found.paths.first + len(found.rows)
        """Number of the block that `append` wants next; all before it were appended, committed or not."""
        self.chain = sealing.chain_after(found.rows, -1) if len(found.rows) else found.chain_before
        self.segment_blocks = info.segment_blocks
        self._directory = directory
        self._info = info
        self._partition = partition
        self._lock: layout.PartitionLock | None = lock
        self._chain_before = found.chain_before
        self._segment = sealing.OpenSegment(found.paths, info, found.rows, found.log_bytes)

    @classmethod
    def open(cls, store: Store, stream: str, partition: int) -> Self:
        """Lock a partition of a stream that the store holds, recover it, and be ready to append.

        Raises LockedError for another writer; DamagedError for committed blocks; StoreError where the store lacks the
        stream, or holds foreign segments; DiskError where it cannot be read or written to, or is no longer in its
        place.
        """
        directory = layout.partition_directory(store.path, stream, partition)
        with ExitStack() as stack, layout.blaming(directory):
            store.require()
            info = read_stream(store.path, stream)
            directory.mkdir(exist_ok=True)
            layout.sync_directory(directory.parent)
            writer = cls(directory, info, partition, stack.enter_context(layout.PartitionLock(directory)))
            stack.pop_all()
            return writer

    def begin(self, start: Start) -> None:
        """Let a partition that holds no block begin at ``start``, durably: the blocks before are available nowhere.

        Raises InputError where it holds blocks, or ``start`` is too low, or inside a segment; StoreError where a write
        failed; the writer is closed.
        """
        if self.begun or start.block < self.next_block or start.block % self._info.segment_blocks:
            raise InputError(
                f"{self._directory} cannot begin at block {start.block}: it must be empty, and segments begin at "
                f"multiples of {self._info.segment_blocks}, here from block {self.next_block} on"
            )
        self._guard(lambda: write_start(self._directory, start))
        self.next_block, self.chain = start.block, start.chain
        self._chain_before = start.chain
        empty = self._segment.rows[:0]
        self._segment = sealing.OpenSegment(layout.SegmentPaths(self._directory, start.block), self._info, empty, 0)

    def append(self, blocks: Blocks, *, token_offset: int) -> None:
        """Write the blocks of (a part of) the message at ``token_offset``; `commit` makes them count.

        A message that crosses the border of a segment is cut there; the full segment is committed and sealed.

        Raises:
            GapError: the blocks do not begin with ``next_block``.
            InputError: tokens, entries and hashes do not belong together.
            DiskError, DamagedError: a write or sync failed, or what is sealed has changed; the writer is closed.
        """
        tokens = memoryview(blocks.tokens).cast("B")
        self._check(blocks, len(tokens))
        self._guard(lambda: self._append(blocks, tokens, token_offset))

    def commit(self) -> None:
        """Make all that was appended durable and visible to readers; one commit may cover many messages.

        Raises DiskError where a write or sync failed, or the directory was moved away; the writer is closed.
        """
        self._guard(self._commit)

    def chain_before(self, block: int) -> bytes | None:
        """Return the chain hash before any block that the store holds, or before the next; None for others."""
        if block == self.next_block:
            return self.chain
        if block > self._segment.paths.first:
            known = block - self._segment.paths.first - 1
            return sealing.chain_after(self._segment.rows, known) if block < self.next_block else None
        reader = PartitionReader(self._directory, self._info, self._partition)
        return reader.chain_before(block)

    def close(self) -> None:
        """Discard what was appended and not committed, and unlock the partition."""
        self._segment.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check(self, blocks: Blocks, token_bytes: int) -> None:
        if blocks.first != self.next_block:
            raise GapError(
                f"{self._directory} wants block {self.next_block} and was given block {blocks.first}: "
                "blocks must come through an Acceptor that began at this writer's next block"
            )
        count = len(blocks.entries)
        if len(blocks.chains) != count or token_bytes != count * self._info.block_bytes:
            raise InputError(
                f"{count} entries, {len(blocks.chains)} hashes and {token_bytes} bytes of tokens do not make blocks of "
                f"{self._info.block_bytes} bytes; hand over blocks as an Acceptor gives them"
            )

    def _guard(self, action: Callable[[], None]) -> None:
        """Run an action that writes; any exception in it closes the writer."""
        if self._lock is None:
            raise StoreError(f"the writer of {self._directory} is closed; open it again, which recovers what counts")
        try:
            with layout.blaming(self._directory):
                action()
        except BaseException:
            self.close()
            raise

    def _append(self, blocks: Blocks, tokens: memoryview, token_offset: int) -> None:
        size = self._info.block_bytes
        start = 0
        while start < len(blocks.entries):
            end = min(start + self._segment.room, len(blocks.entries))
            data, part = tokens[start * size : end * size], slice(start, end)
            self._segment.append(data, blocks.entries[part], blocks.chains[part], token_offset)
            self.begun = True
            self.next_block = blocks.first + end
            self.chain = blocks.chains[end - 1]
            self.source_hint = token_offset
            start = end
            if not self._segment.room:
                self._roll()

    def _commit(self) -> None:
        if self._lock is not None:
            self._lock.check_place()
        self._segment.commit()

    def _roll(self) -> None:
        self._commit()
        full = self._segment
        full.close()
        sealing.seal(full.paths, self._info, self._partition, full.rows, self._chain_before, written=full.written)
        self._chain_before = self.chain
        following = layout.SegmentPaths(self._directory, self.next_block)
        self._segment = sealing.OpenSegment(following, self._info, full.rows[:0], 0)
