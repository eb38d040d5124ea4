"""The writer of one partition: appends accepted blocks, commits them, and seals what is full."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from tokenmill.errors import GapError, InputError, StoreError
from tokenmill.reading.acceptance import Blocks
from tokenmill.store.commit_log import chain_after
from tokenmill.store.layout import PartitionLock, SegmentPaths, blaming, partition_directory, sync_directory
from tokenmill.store.reader import PartitionReader
from tokenmill.store.recovery import recover_partition
from tokenmill.store.sealing import OpenSegment, seal
from tokenmill.store.store import Store, read_stream
from tokenmill.store.stream import Start, StreamInfo, write_start


class PartitionWriter:
    """The one writer of a partition in a store, from `open` to `close`; not for use by several threads at once.

    When a write or a sync fails, the writer is closed: what a failed sync left on the disk is unknown, and only a new
    `open`, which recovers, may go on.
    """

    def __init__(self, directory: Path, info: StreamInfo, partition: int, lock: PartitionLock) -> None:
        """Recover the locked directory; callers use `open`."""
        found = recover_partition(directory, info, partition)
        self.source_hint = found.source_offset
        """Offset in the token topic of the message that brought the block before ``next_block``; -1 if unknown.
        A hint: believe it only if that message ends there with the hash ``chain``."""
        self.truncated_bytes = found.truncated_bytes
        """Bytes that recovery cut off because they had never been committed."""
        self.begun = found.begun or len(found.rows) > 0
        """Whether the partition holds blocks; if not, it may begin later (`begin`)."""
        self.next_block = found.paths.first + len(found.rows)
        """Number of the block that `append` wants next; all before it were appended, committed or not."""
        self.chain = chain_after(found.rows, -1) if len(found.rows) else found.chain_before
        """Chain hash before ``next_block``."""
        self._directory = directory
        self._info = info
        self._partition = partition
        self._lock: PartitionLock | None = lock
        self._chain_before = found.chain_before
        self._segment = OpenSegment(found.paths, info, found.rows, found.log_bytes)

    @property
    def segment_blocks(self) -> int:
        """Blocks in a segment."""
        return self._info.segment_blocks

    @classmethod
    def open(cls, store: Store, stream: str, partition: int) -> Self:
        """Lock a partition of a stream that the store holds, recover it, and be ready to append.

        Raises:
            LockedError: another writer holds the partition.
            DamagedError: what was committed is damaged.
            StoreError: the store lacks the stream, or holds foreign segments.
            DiskError: the store cannot be read or written to, or is no longer in its place.

        """
        directory = partition_directory(store.path, stream, partition)
        lock = None
        try:
            with blaming(directory):
                store.require()
                info = read_stream(store.path, stream)
                directory.mkdir(exist_ok=True)
                sync_directory(directory.parent)
                lock = PartitionLock(directory)
                return cls(directory, info, partition, lock)
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    def begin(self, start: Start) -> None:
        """Let a partition that holds no block begin at ``start``, durably: the blocks before are available nowhere.

        Raises:
            InputError: the partition holds blocks, or ``start`` is below where it begins, or inside a segment.
            StoreError: a write or sync failed; the writer is closed.

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
        self._segment = OpenSegment(SegmentPaths(self._directory, start.block), self._info, empty, 0)

    def append(self, blocks: Blocks, *, token_offset: int) -> None:
        """Write the blocks of (a part of) the message at ``token_offset``; `commit` makes them count.

        Segments end at exactly ``segment_blocks`` blocks: a message that crosses a border is cut there, and what fills
        a segment is committed and the segment sealed before this returns.

        Raises:
            GapError: the blocks do not begin with ``next_block``.
            InputError: tokens, entries and hashes do not belong together.
            DiskError: a write or sync failed; the writer is closed.
            DamagedError: the segment to be sealed changed since its commits; the writer is closed.

        """
        tokens = memoryview(blocks.tokens).cast("B")
        self._check(blocks, len(tokens))
        self._guard(lambda: self._append(blocks, tokens, token_offset))

    def commit(self) -> None:
        """Make all that was appended durable and visible to readers; one commit may cover many messages.

        Raises:
            DiskError: a write or sync failed, or the directory was moved away; the writer is closed.

        """
        self._guard(self._commit)

    def chain_before(self, block: int) -> bytes | None:
        """Return the chain hash before any block that the store holds, or before the next; None for others."""
        if block == self.next_block:
            return self.chain
        if block > self._segment.paths.first:
            known = block - self._segment.paths.first - 1
            return chain_after(self._segment.rows, known) if block < self.next_block else None
        reader = PartitionReader(self._directory, self._info, self._partition)
        return reader.chain_before(block)

    def close(self) -> None:
        """Discard what was appended and not committed, and unlock the partition."""
        self._segment.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            with blaming(self._directory):
                action()
        except BaseException:
            self.close()
            raise

    def _append(self, blocks: Blocks, tokens: memoryview, token_offset: int) -> None:
        size = self._info.block_bytes
        start = 0
        while start < len(blocks.entries):
            end = min(start + self._segment.room, len(blocks.entries))
            part = slice(start, end)
            self._segment.append(
                tokens[start * size : end * size], blocks.entries[part], blocks.chains[part], token_offset
            )
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
        """Commit and seal the full segment, and begin the next one."""
        self._commit()
        full = self._segment
        full.close()
        seal(full.paths, self._info, self._partition, full.rows, self._chain_before, written=full.written)
        self._chain_before = self.chain
        following = SegmentPaths(self._directory, self.next_block)
        self._segment = OpenSegment(following, self._info, full.rows[:0], 0)
