"""What all partitions of a stream share in a process that fills a store: a segment worker, or a mirror."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiokafka import TopicPartition

from tokenmill.recipe import Recipe
from tokenmill.store import Store
from tokenmill.store.layout import partition_directory
from tokenmill.wire.ignoring import IgnoreList

from ..settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContext:
    """What a partition is given by whoever runs it."""

    settings: Settings
    store: Store
    stream: str
    recipe: Recipe
    ignored: IgnoreList
    """Messages that are passed over; grows while control topics are read."""
    start_partition: Callable[[TopicPartition, int], Awaitable[int | None]]
    """Seeks, and lets the partition flow; the epoch of what comes from there, None where it is no longer ours."""
    set_durable: Callable[[TopicPartition, int], None]
    end_offset: Callable[[TopicPartition], int]
    """The last known end of a partition."""
    fail: Callable[[Exception], None]
    """Told what only a new start, with its recovery, gets over: the partition does nothing more. May not return."""

    def circumstances(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return something that differs once the reason of a partition's halt may have ended.

        That is the length of its ignore list, and when names in its directory and in the stream's changed last: repairs
        put whole files in their places.
        """
        directory = partition_directory(self.store.path, self.stream, tp.partition)
        changed = [path.stat().st_mtime_ns if path.exists() else 0 for path in (directory, directory.parent)]
        return (self.ignored.size(tp.partition), *changed)
