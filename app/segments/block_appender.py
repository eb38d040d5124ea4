"""Blocks on their way into the store: what continues the chain is appended as it comes, and committed in time."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiokafka import TopicPartition

from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, GapError
from tokenmill.reading.acceptance import Acceptor, Gap, Taken
from tokenmill.recipe import Recipe
from tokenmill.records import SourceRecord
from tokenmill.store import PartitionWriter, Start

from ..kafka.ignoring import IgnoreList
from ..kafka.token_topic import offered
from ..telemetry import worker_metrics as metrics
from .following import GapSearch

HALTING = (DamagedError, DifferenceError, FingerprintError, GapError)
"""What only a person can remedy: the topic or the store contradicts itself, or the stream."""
COMMIT_SECONDS: Final = 0.25
"""Shortest time between two commits of a partition: each syncs three times, so blocks that come faster share one."""


class BlockAppender:
    """The open directory of one partition, and its chain as far as it was taken.

    Its methods work on files. They are called in threads, one at a time, and raise as `PartitionWriter` does.
    """

    def __init__(
        self, tp: TopicPartition, stream: str, recipe: Recipe, ignored: IgnoreList, writer: PartitionWriter
    ) -> None:
        """Append what comes on the token topic ``tp``, but for what is ``ignored``, to ``writer``, and close that."""
        self.writer = writer
        self.closed = False
        """Whether the directory is unlocked, and nothing can be appended any more."""
        self.committed = writer.next_block
        """Number of the block after the last one that is durable."""
        self.newest_timestamp = 0
        """When the newest source record with durable tokens was written, in milliseconds since 1970; 0: unknown."""
        self._tp = tp
        self._stream = stream
        self._recipe = recipe
        self._ignored = ignored
        self._uncommitted: list[int] = []
        """Timestamps of the last source records of messages whose blocks were appended and not committed."""
        self._acceptor = self._new_acceptor()

    def _new_acceptor(self) -> Acceptor:
        writer, recipe = self.writer, self._recipe
        return Acceptor(
            recipe.fingerprint,
            self._tp.partition,
            recipe.block_bytes,
            block=writer.next_block,
            chain=writer.chain,
            recall=writer.chain_before,
        )

    @property
    def next_block(self) -> int:
        """The number of the block that is wanted next."""
        return self._acceptor.next_block

    @property
    def has_uncommitted(self) -> bool:
        """Whether there is anything to commit."""
        return self.writer.next_block > self.committed

    def begin(self, start: Start) -> None:
        """Let the partition, of which the store holds nothing, begin there."""
        self.writer.begin(start)
        self.committed = start.block
        self._acceptor = self._new_acceptor()

    def append(self, records: Sequence[SourceRecord], search: GapSearch) -> Gap | None:
        """Append the records' new blocks; return a gap if there is one. ``search`` sees every message.

        What is right before an error is committed, so that it is not lost with the halt.
        """
        gap: Gap | None = None
        for record in records:
            try:
                found = offered(self._acceptor, record, self._tp, self._ignored)
            except HALTING:
                self.commit()
                raise
            if found is None:
                metrics.IGNORED.inc()
                continue
            message, verdict = found
            search.saw(message)
            if isinstance(verdict, Gap):
                metrics.GAPS.inc()
                gap = verdict
                continue
            metrics.DUPLICATES.inc(verdict.dropped)
            if isinstance(verdict, Taken) and verdict.blocks.entries:
                self.writer.append(verdict.blocks, token_offset=record.offset)
                self._uncommitted.append(message.cursor.last_timestamp)
        return gap

    def commit(self) -> None:
        """Make durable what was appended, and count it: it can be trained on now."""
        self.writer.commit()
        metrics.BLOCKS.labels(self._stream, "segment").inc(self.writer.next_block - self.committed)
        self.committed = self.writer.next_block
        now, latency = time.time(), metrics.LATENCY_SECONDS.labels(self._stream)
        for timestamp in self._uncommitted:
            self.newest_timestamp = max(self.newest_timestamp, timestamp)
            latency.observe(max(0.0, now - timestamp / 1000))
        self._uncommitted.clear()

    def close(self) -> None:
        """Unlock the directory."""
        self.writer.close()
        self.closed = True


class CommitTimer:
    """Says when to commit: at once, or `COMMIT_SECONDS` after the last commit."""

    def __init__(self, commit_later: Callable[[], Awaitable[None]], name: str) -> None:
        """``commit_later`` is called in a task of this name, and raises nothing."""
        self._commit_later = commit_later
        self._name = name
        self._last = -math.inf
        self._waiting: asyncio.Task[None] | None = None

    def is_due(self) -> bool:
        """Return whether to commit now; if not, ``commit_later`` is called as soon as it is due."""
        wait = self._last + COMMIT_SECONDS - time.monotonic()
        if wait > 0 and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait(wait), name=self._name)
        return wait <= 0

    def committed(self) -> None:
        """Begin again."""
        self._last = time.monotonic()

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._waiting = None
        await self._commit_later()
