"""Dealing out documents: in the reading order, numbered, each to its partition, at its offset there."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...sources.items import DocumentSource, Item, Refused, as_earlier
from ...sources.reading_order import ITEM_BYTES, OrderState, ReadingOrder, ShuffleBuffer
from ..produce.producing import partition_of
from ..produce.run_notes import IN_TURN
from ..produce.summary import Summary
from .millers import Millers, batch_of
from .parted_sources import parted

BATCH_BYTES: Final = 2 << 20
"""Bytes of a partition's documents that are milled at once ..."""
OPEN_BYTES: Final = 64 << 20
"""... and of all partitions' documents that wait to be so many."""
AHEAD: Final = 2
"""Parts of each file that are scanned ahead, beside one for each process."""


@dataclass(slots=True, kw_only=True)
class Dealer:
    """Reads sources and gives their documents to the processes that mill."""

    millers: Millers
    summary: Summary
    """Counts what is dealt out, and what is passed over."""
    refuse: Callable[[Refused], None]
    """Called with what is no document; may raise."""
    processes: int
    number: int
    """Of the next document."""
    offsets: list[int]
    """By partition: the offset of its next document."""
    wanted: Mapping[int, int]
    """By partition: documents below this offset are milled already."""
    limit: int | None = None
    """Number at which this ends."""
    order: str
    """Of the run (`PackRun.order`): it decides which partition a document goes to."""
    shuffle: ShuffleBuffer[Item] | None = None
    may_add: Callable[[], None] = lambda: None
    """Called before documents are dealt out; may raise."""
    _open: dict[int, list[Item]] = field(default_factory=dict)
    _open_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.number >= self.limit

    async def read(
        self, sources: Sequence[DocumentSource], start: OrderState, between: Callable[[OrderState], Awaitable[None]]
    ) -> None:
        """Deal out all documents behind a place, up to the limit; ``between`` is called after each chunk.

        What waits for more is dealt out by `deal_open`.
        """
        self.summary.bytes_total = sum(source.size for source in sources)
        reading = parted(sources, self.millers.scan, AHEAD + self.processes)
        with ReadingOrder(reading, start) as order:
            async for turn in order.turns():
                if turn is None:  # the next chunk may take long
                    await self.deal_open()
                    continue
                self.summary.count_unmet(turn.unmet)
                await self._items(turn.items)
                self.summary.bytes_read = turn.bytes_read
                if self.is_full:
                    break
                await between(turn.after)
        if self.shuffle is not None:
            await self._items(list(self.shuffle.rest()), shuffled=True)

    async def _items(self, items: Sequence[Item | Refused], *, shuffled: bool = False) -> None:
        count, limit, offsets, wanted = len(self.offsets), self.limit, self.offsets, self.wanted
        open_, open_bytes, dealt = self._open, self._open_bytes, self.summary.partitions
        room = self._room
        for found in as_earlier(items) if self.order == IN_TURN else items:
            if isinstance(found, Refused):
                self.refuse(found)
                continue
            item = found if self.shuffle is None or shuffled else self.shuffle.exchange(found)
            if item is None:
                continue
            if limit is not None and self.number >= limit:
                return
            partition = partition_of(self.number, item.key, count, self.order)
            self.number += 1
            offset = offsets[partition]
            offsets[partition] = offset + 1
            if offset < wanted[partition]:
                self.summary.before += 1
                continue
            open_.setdefault(partition, []).append(item)
            size = len(item.value)
            waiting = open_bytes[partition] = open_bytes.get(partition, 0) + size + ITEM_BYTES
            dealt[partition].documents += 1
            dealt[partition].bytes += size
            if waiting >= room:
                await self._deal(partition)

    @property
    def _room(self) -> int:
        return max(1, min(BATCH_BYTES, OPEN_BYTES // len(self.offsets)))

    async def _deal(self, partition: int) -> None:
        items = self._open.pop(partition, [])
        size = self._open_bytes.pop(partition, 0)
        if not items:
            return
        self.may_add()
        await self.millers.mill(batch_of(partition, self.offsets[partition] - len(items), items), size)

    async def deal_open(self) -> None:
        """Deal out all that waits for more."""
        for partition in list(self._open):
            await self._deal(partition)

    async def flush(self) -> None:
        """Fill the open blocks of all partitions with padding, as `tokenmill flush` does."""
        await self.deal_open()
        for partition, offset in enumerate(self.offsets):
            await self.millers.flush(partition, offset)
