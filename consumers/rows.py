"""The tokens of samples, many batches at a time, in numpy."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError
from tokenmill.samples import EraOrder, Numbers, Ranks, Samples, TrainableSamples, join
from tokenmill.store import MapWatch
from tokenmill.store.checking import Crcs, crcs_of_runs

from .gathering import Addresses, Gathering, Rows, addresses_of, rows_of
from .read_ahead import Following, ReadAhead

_TABLE_BLOCKS: Final = 1 << 20
"""Blocks of an era up to which it is kept where each is in memory, in 8 MiB at most."""

_FIRST_SAMPLES: Final = 256
"""What is looked up first, so that the first batch comes soon where each sample may be in another era or segment; then
four times as much each time."""
_UNKNOWN: Final = -1
"""No address."""

Items = Sequence[tuple[EraOrder, Numbers]]
"""Samples behind each other, as items of eras."""


class DamagedRowError(Exception):
    """A row was not what was committed when it was copied: `Chunk.refuse` says which block, and raises what people see.

    What copies may run in any thread; what finds the block out uses the readers, which are the loop's.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        """Its place among the samples of the chunk."""
        super().__init__(at)


class Chunk:
    """Consecutive batches of one rank: where their samples are."""

    __slots__ = ("_crcs", "_gathering", "_items", "_samples", "batch_size", "kept", "steps", "trainable")

    def __init__(
        self,
        items: Items,
        gathering: Gathering,
        *,
        steps: int,
        batch_size: int,
        trainable: TrainableSamples,
        kept: npt.NDArray[np.bool_] | None = None,
        crcs: Crcs | None = None,
    ) -> None:
        """Take ``steps * batch_size`` items of ``trainable``, and the rows of those that are ``kept``; None: of all.

        With ``crcs``, `stretches` holds each row against its own when it was copied: the row is a whole block then.
        """
        self.steps = steps
        self.batch_size = batch_size
        self.trainable = trainable
        self.kept = kept
        """Which of the samples are there: with ``on_damage="skip"``, those that are not damaged; None: all."""
        self._items = items
        self._gathering = gathering
        self._crcs = crcs
        self._samples: Samples | None = None

    def rows(self) -> Rows:
        """Return the tokens of all samples that are there, ``[samples, sequence_length + 1]``."""
        return self._gathering.rows()

    def stretches(self) -> Iterator[Rows]:
        """Yield the batches, one or several at a time: ``[batches, samples, sequence_length + 1]``.

        With `kept`, one at a time, and those samples of it that are there: none, perhaps.

        Raises:
            DamagedRowError: a block is not what was committed.
            DamagedError: a file was cut off since it was mapped.

        """
        size = self.batch_size
        if self.kept is None:
            stretches = self._gathering.stretches(size)
            return stretches if self._crcs is None else self._checked(stretches, self._crcs)
        stops = np.cumsum(self.kept)[size - 1 :: size].tolist()
        return (self._gathering.rows(start, stop)[None] for start, stop in pairwise([0, *stops]))

    def _checked(self, stretches: Iterator[Rows], crcs: Crcs) -> Iterator[Rows]:
        """Yield the same, each after its CRC was looked at, while it still is in the core's cache."""
        together = self._gathering.together(self.batch_size)
        start = 0
        for crc in crcs_of_runs(crcs, self._gathering.row_bytes, together):
            stretch = next(stretches)
            if crc32(stretch) != crc:
                at = self._first_damaged(stretch, crcs[start:])
                whole = at // self.batch_size
                if whole:
                    yield stretch[:whole]
                raise DamagedRowError(start + at)
            yield stretch
            del stretch  # its memory can be the next one's
            start += together

    @staticmethod
    def _first_damaged(stretch: Rows, crcs: Crcs) -> int:
        rows = stretch.reshape(-1, stretch.shape[-1])
        return [crc32(row) == crc for row, crc in zip(rows, crcs.tolist(), strict=False)].index(False)

    def refuse(self, at: int) -> NoReturn:
        """Raise the error for the sample at this place, whose block is not what was committed.

        Raises:
            DamagedError: always.

        """
        samples = self.samples()
        partition, block = int(samples.partitions[at]), int(samples.blocks[at])
        self._gathering.watch.expire()  # a repair will put another file in its place, or has done so
        self.trainable.reader(partition).read(block)
        raise DamagedError(
            f"block {block} of partition {partition} of {self.trainable.stream} was not what was committed when it was "
            "read, and is now",
            "Its file was repaired or changed meanwhile: iterate again, and test the host's memory if this comes again",
        )

    def samples(self) -> Samples:
        """Return all samples, also those that are not there; computed when it is first asked for."""
        if self._samples is None:
            self._samples = join(order.samples_of(items) for order, items in self._items)
        return self._samples


class _EraTable:
    """Where the blocks of one era are in memory: to look them up is cheaper than to find them.

    A segment is mapped when the first of its blocks is asked for: an era of thousands costs nothing at its beginning.
    """

    def __init__(self, order: EraOrder, trainable: TrainableSamples) -> None:
        self.maps: list[Rows] = []
        """Of all that were asked for."""
        self._views = order.views
        self._trainable = trainable
        self._checks_copies = trainable.checks and order.views == 1
        self._starts = np.full(order.blocks, _UNKNOWN, np.int64)
        self._crcs = np.empty(order.blocks if self._checks_copies else 0, np.uint32)
        self._sound = np.zeros(order.blocks, np.bool_) if trainable.checks and not self._checks_copies else None
        """Which of the blocks need not be checked in place any more; None: none needs it."""
        counts = [stop - first for _, first, stop in order.ranges]
        self._ranges = list(zip(order.ranges, accumulate(counts, initial=0)))  # noqa: B905 - one sum more than ranges
        """With each partition's blocks, how many there are in the partitions before."""

    def addresses(self, items: Numbers, view_bytes: int) -> Addresses:
        """Return where items begin; a view begins with the last token of the one before.

        Raises:
            DamagedError: a block of theirs is missing, or not what was committed.

        """
        blocks, views = (items, None) if self._views == 1 else np.divmod(items, self._views)
        starts = self._starts[blocks]
        if starts.min(initial=0) < 0:
            self._map(blocks[starts < 0])
            starts = self._starts[blocks]
        if self._sound is not None and len(unknown := blocks[~self._sound[blocks]]):
            self._check(unknown, self._sound)
        found: Addresses = starts if views is None else starts + views * view_bytes
        return found

    def crcs(self, items: Numbers) -> Crcs | None:
        """Return what the CRCs of items must be; None where they are no blocks, or need no check."""
        return self._crcs[items] if self._checks_copies else None

    def _map(self, blocks: Numbers) -> None:
        """Map the segments that hold these blocks."""
        asked = np.zeros(len(self._starts), np.bool_)
        asked[blocks] = True
        for (partition, first, stop), begin in self._ranges:
            reader = self._trainable.reader(partition)
            size = reader.info.segment_blocks
            segments = np.arange(first - first % size, stop, size)
            mine = np.logical_or.reduceat(asked[begin : begin + stop - first], np.maximum(segments - first, 0))
            for segment in segments[mine].tolist():
                bounds = max(segment, first), min(segment + size, stop)
                span = slice(begin + bounds[0] - first, begin + bounds[1] - first)
                if self._checks_copies:
                    tokens, self._crcs[span] = next(reader.between_with_crcs(*bounds))
                else:
                    tokens = next(reader.between(*bounds))
                self._starts[span] = rows_of(tokens)
                self.maps.append(tokens)

    def _check(self, blocks: Numbers, sound: npt.NDArray[np.bool_]) -> None:
        """Refuse damage to these blocks; note what became known of others beside them."""
        for (partition, first, stop), begin in self._ranges:
            mine = blocks[(begin <= blocks) & (blocks < begin + stop - first)]
            for segment, marks in self._trainable.reader(partition).sound(mine + first - begin) if len(mine) else ():
                low, high = max(segment, first), min(segment + len(marks), stop)
                sound[begin + low - first : begin + high - first] = marks[low - segment : high - segment]


class RowReader:
    """Finds the rows of a rank's next steps, which costs least for many at once; they are copied batch by batch."""

    def __init__(
        self,
        trainable: TrainableSamples,
        ranks: Ranks,
        sequence_length: int,
        *,
        skip: bool,
        ahead: ReadAhead | None = None,
    ) -> None:
        self.trainable = trainable
        self._ahead = ahead
        self._ranks = ranks
        self._length = sequence_length
        self._skip = skip
        self._tables: dict[EraOrder, _EraTable] = {}
        """Of the eras that the last chunk was from."""
        self._watch = MapWatch()
        self._most_samples = _FIRST_SAMPLES

    def read(self, first: int, steps: int) -> Chunk | None:
        """Return the next steps from sample ``first`` on, ``steps`` at most, and at first fewer; None if none is there.

        Raises:
            as in `TrainableSamples.ready`; and DamagedError where a block is not what was committed.

        """
        steps = min(steps, max(self._most_samples // self._ranks.batch_size, 1))
        ahead, turn = self._ahead, self._ranks.turn
        is_in_memory = ahead is None or ahead.reach(self.trainable.places, first, first + steps * turn - 1)
        ready = self._ranks.steps_in(self.trainable.ready(first, steps * self._ranks.turn))
        if not ready:
            return None
        self._most_samples *= 4
        items = self.trainable.items(self._ranks.samples(first, ready))
        if ahead is not None and not is_in_memory:
            samples = join(order.samples_of(part) for order, part in items)
            ahead.reach_rows((first, ready), samples, partial(self._behind, first + ready * turn, ready))
        if self._skip or any(order.blocks > _TABLE_BLOCKS for order, _ in items):
            return self.find(items, ready)
        if not self._watch.look(tokens for table in self._tables.values() for tokens in table.maps):
            self._tables = {}  # a repair put other files in their place, or they were changed
        self._tables = {order: self._tables.get(order) or _EraTable(order, self.trainable) for order, _ in items}
        view_bytes = self._length * self.trainable.dtype.itemsize
        try:
            addresses = [self._tables[order].addresses(part, view_bytes) for order, part in items]
        except DamagedError:  # a repair will put another file in the place of what was looked up
            self._tables = {}
            raise
        maps = [tokens for table in self._tables.values() for tokens in table.maps]
        crcs = [found for order, part in items if (found := self._tables[order].crcs(part)) is not None]
        return self._chunk(items, ready, np.concatenate(addresses), maps, crcs=np.concatenate(crcs) if crcs else None)

    def _behind(self, first: int, steps: int) -> Following | None:
        """Return the samples of the next steps where they can be read already: those that `read` will ask for."""
        ready = self._ranks.steps_in(self.trainable.ready(first, steps * self._ranks.turn))
        return ((first, ready), self.trainable.locate(self._ranks.samples(first, ready))) if ready else None

    def find(self, items: Items, steps: int = 1) -> Chunk:
        """Return samples, one at least, as a chunk; costs nothing that grows with their eras.

        Its `stretches` are of use where the samples are ``steps`` whole steps of the rank; its `rows` always are.
        """
        samples = join(order.samples_of(part) for order, part in items)
        addresses = np.empty(len(samples.blocks), np.int64)
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
        there = addresses if kept is None else addresses[kept]
        return self._chunk(items, steps, there, maps, kept=kept)

    def _chunk(
        self,
        items: Items,
        steps: int,
        addresses: Addresses,
        maps: list[Rows],
        *,
        kept: npt.NDArray[np.bool_] | None = None,
        crcs: Crcs | None = None,
    ) -> Chunk:
        gathering = Gathering(addresses, self._length + 1, self.trainable.dtype, maps, self._watch)
        size = self._ranks.batch_size
        return Chunk(items, gathering, steps=steps, batch_size=size, trainable=self.trainable, kept=kept, crcs=crcs)
