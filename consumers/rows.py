"""Where the tokens of a rank's next steps are, many batches at a time, in numpy."""

from typing import Final

import numpy as np

from tokenmill.errors import DamagedError
from tokenmill.samples import EraOrder, Ranks, SegmentOrder, TrainableSamples, join
from tokenmill.store import MapWatch

from .chunk import Chunk, Items, RowOptions
from .era_table import EraTable, LocatedRows
from .gathering import Rows, addresses_of
from .read_ahead import EraReadAhead

_TABLE_BLOCKS: Final = 1 << 20
"""Blocks of an era up to which it is kept where each is in memory, in 8 MiB at most."""

_FIRST_SAMPLES: Final = 256
"""What is looked up first, so that the first batch comes soon where each sample may be in another era or segment; then
four times as much each time."""
_PLAIN: Final = RowOptions()


class RowReader:
    """Finds the rows of a rank's next steps, which costs least for many at once; they are copied batch by batch."""

    def __init__(
        self,
        trainable: TrainableSamples,
        ranks: Ranks,
        sequence_length: int,
        ahead: EraReadAhead | None = None,
        *,
        skip: bool,
        options: RowOptions = _PLAIN,
    ) -> None:
        self.trainable = trainable
        self._ahead = ahead
        self._is_in_memory = True
        """Whether all that is to be located next is: else it is read sample by sample."""
        self.ranks = ranks
        """Those of the steps that are read next."""
        self._length = sequence_length
        self._skip = skip
        self.options = options
        self._tables: dict[EraOrder, EraTable] = {}
        """Of the eras that the last chunk was from."""
        self._watch = MapWatch()
        self._most_samples = _FIRST_SAMPLES
        self.checks_copies = True
        """Whether whole blocks may be checked after they were copied: where all samples of a batch are whole blocks."""

    def read(self, first: int, steps: int, segments: SegmentOrder | None = None) -> Chunk | None:
        """Return the next steps from sample ``first`` on, ``steps`` at most, and at first fewer; None if none is there.

        With ``segments``, blocks are read view by view, and only when all that are read side by side are there.

        Raises:
            as in `TrainableSamples.ready`; and DamagedError where a block is not what was committed.

        """
        steps = min(steps, max(self._most_samples // self.ranks.batch_size, 1))
        ready = self.ranks.steps_in(self._ready(first, steps * self.ranks.turn, segments))
        if not ready:
            return None
        self._most_samples *= 4
        samples = self.ranks.samples(first, ready)
        if segments is None:
            items = self.trainable.items(samples)
            self._begin_rows(first + ready * self.ranks.turn, ready, items)
        else:
            items = self.trainable.items_in_any_order(segments.numbers(samples))
        return self._chunk(items, ready, self.locate(items))

    def read_last(self, first: int, samples: int) -> Chunk | None:
        """Return the last step, this process's of a turn from sample ``first`` on, of so few; None: not there yet."""
        begin = first + self.ranks.worker * self.ranks.global_batch
        if self.trainable.ready(begin, samples) < samples:
            return None
        mine = self.ranks.samples_of_last(begin, samples)
        with self.trainable.lock:
            return self.find(self.trainable.items(mine), batch_size=len(mine))

    def reach(self, first: int, samples: int) -> None:
        """Have the eras of samples in memory before they are counted and located, where that is worth waiting for."""
        if self._ahead is not None and samples:
            self._is_in_memory = self._ahead.reach(self.trainable.places, first, first + samples - 1)

    def _begin_rows(self, first: int, steps: int, items: Items) -> None:
        """Where samples are read one by one: have those of the steps behind these read meanwhile, if they are there."""
        if self._ahead is None or self._is_in_memory:
            return
        self._ahead.reach_rows(join(order.samples_of(part) for order, part in items))
        if ready := self.ranks.steps_in(self.trainable.ready(first, steps * self.ranks.turn)):
            self._ahead.begin_rows(self.trainable.locate(self.ranks.samples(first, ready)))
        self._is_in_memory = True

    def locate(self, items: Items) -> LocatedRows:
        """Return where items are that were just counted; costs least for many at once.

        Raises:
            DamagedError: a block is not what was committed.

        """
        if self._ahead is not None and not self._is_in_memory:
            self._ahead.reach_rows(join(order.samples_of(part) for order, part in items))
        with self.trainable.lock:
            return self._located(items)

    def _located(self, items: Items) -> LocatedRows:
        if self._skip or any(order.blocks > _TABLE_BLOCKS for order, _ in items):
            return self._search(items)
        if not self._watch.look(tokens for table in self._tables.values() for tokens in table.maps):
            self._tables = {}  # a repair put other files in their place, or they were changed
        self._tables = {
            order: self._tables.get(order) or EraTable(order, self.trainable, checks_copies=self.checks_copies)
            for order in dict.fromkeys(order for order, _ in items)
        }
        view_bytes = self._length * self.trainable.dtype.itemsize
        try:
            addresses = [self._tables[order].addresses(part, view_bytes) for order, part in items]
        except DamagedError:  # a repair will put another file in the place of what was looked up
            self._tables = {}
            raise
        maps = [tokens for table in self._tables.values() for tokens in table.maps]
        crcs = [found for order, part in items if (found := self._tables[order].crcs(part)) is not None]
        return LocatedRows(np.concatenate(addresses), maps, crcs=np.concatenate(crcs) if crcs else None)

    def _ready(self, first: int, wanted: int, segments: SegmentOrder | None) -> int:
        """Return how many samples from ``first`` on can be read, ``wanted`` at most."""
        if segments is None:
            self.reach(first, wanted)
            return self.trainable.ready(first, wanted)
        begin = segments.start(first)
        end = segments.start(first + wanted - 1) + segments.group
        self.reach(begin, end - begin)
        there = begin + self.trainable.ready(begin, end - begin)
        return max(min(segments.end(there), first + wanted) - first, 0)

    def find(self, items: Items, steps: int = 1, *, batch_size: int | None = None) -> Chunk:
        """Return samples as a chunk; costs nothing that grows with their eras.

        Its `stretches` are of use where the samples are ``steps`` whole steps of the rank; its `rows` always are. With
        ``batch_size``, they are one batch of so many.
        """
        return self._chunk(items, steps, self._search(items), batch_size)

    def _search(self, items: Items) -> LocatedRows:
        samples = join(order.samples_of(part) for order, part in items)
        addresses = np.zeros(len(samples.blocks), np.int64)
        kept = np.zeros(len(addresses), np.bool_) if self._skip else None
        maps: list[Rows] = []
        for partition in np.flatnonzero(np.bincount(samples.partitions)).tolist():
            mine = np.flatnonzero(samples.partitions == partition)
            for where, tokens, found in self.trainable.reader(partition).parts(samples.blocks[mine]):
                into = mine[where]
                starts = found * tokens.shape[1]
                if tokens.shape[1] != self._length + 1:  # a view begins with the last token of the one before
                    starts += samples.views[into] * self._length
                addresses[into] = addresses_of(tokens, starts)
                maps.append(tokens)
                if kept is not None:
                    kept[into] = True
        return LocatedRows(addresses, maps, kept=kept)

    def _chunk(self, items: Items, steps: int, found: LocatedRows, batch_size: int | None = None) -> Chunk:
        return Chunk(
            items,
            found.gathering(self._length + 1, self.trainable.dtype, self._watch),
            steps=steps,
            batch_size=self.ranks.batch_size if batch_size is None else batch_size,
            trainable=self.trainable,
            kept=found.kept,
            crcs=found.crcs,
            options=self.options,
        )
