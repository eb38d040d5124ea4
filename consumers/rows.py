"""The tokens of samples, many batches at a time, in numpy."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples import EraOrder, Numbers, Ranks, Samples, SegmentOrder, TrainableSamples, join
from tokenmill.store import MapWatch, Pieces, join_pieces
from tokenmill.store.checking import Crcs, crcs_of_runs

from .gathering import Addresses, Gathering, Rows, addresses_of, rows_of
from .reachable import ReachableStream

_TABLE_BLOCKS: Final = 1 << 20
"""Blocks of an era up to which it is kept where each is in memory, in 8 MiB at most."""

_FIRST_SAMPLES: Final = 256
"""What is looked up first, so that the first batch comes soon where each sample may be in another era or segment; then
four times as much each time."""
_PIECES_AHEAD: Final = 512
"""Samples whose pieces are read in one go, those of the batches after the one that was asked for: a tenth of the cost
of reading them batch by batch."""
_UNKNOWN: Final = -1
"""No address."""

Items = Sequence[tuple[EraOrder, Numbers]]
"""Samples behind each other, as items of eras."""


class Chunk:
    """Consecutive batches of one rank: where their samples are."""

    __slots__ = (
        "_crcs",
        "_gathering",
        "_items",
        "_pieces",
        "_samples",
        "batch_size",
        "kept",
        "sends_documents",
        "steps",
        "trainable",
    )

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
        sends_documents: bool = False,
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
        self._pieces: tuple[int, int, Pieces] | None = None
        """Those of the samples ``[start, stop)``, of those that are there."""
        self.sends_documents = sends_documents
        """Whether batches carry their pieces to other processes."""

    def rows(self) -> Rows:
        """Return the tokens of all samples that are there, ``[samples, sequence_length + 1]``."""
        return self._gathering.rows()

    def stretches(self) -> Iterator[Rows]:
        """Yield the batches, one or several at a time: ``[batches, samples, sequence_length + 1]``.

        With `kept`, one at a time, and those samples of it that are there: none, perhaps.

        Raises:
            DamagedError: a block is not what was committed, or a file was cut off since it was mapped.

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
                self._refuse(start + at)
            yield stretch
            del stretch  # its memory can be the next one's
            start += together

    @staticmethod
    def _first_damaged(stretch: Rows, crcs: Crcs) -> int:
        rows = stretch.reshape(-1, stretch.shape[-1])
        return [crc32(row) == crc for row, crc in zip(rows, crcs.tolist(), strict=False)].index(False)

    def _refuse(self, at: int) -> None:
        """Raise the error for the sample at this place, whose block is not what was committed."""
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

    def places(self, first: int, stop: int) -> Samples:
        """Return where the samples ``[first, stop)`` are from, those that are there."""
        found = Samples(*(column[first:stop] for column in self.samples()))
        return found if self.kept is None else Samples(*(column[self.kept[first:stop]] for column in found))

    def pieces(self, start: int) -> Pieces:
        """Return the pieces of the batch that begins at this sample, read together with those of batches after it.

        Raises:
            InputError: the blocks were retired since.
            StoreError: the store is not there any more.
            DamagedError: the document table is damaged.

        """
        stop = start + self.batch_size
        if self.kept is None and self._pieces is not None and self._pieces[0] <= start < stop <= self._pieces[1]:
            return self._pieces[2].between(start - self._pieces[0], stop - self._pieces[0])
        ahead = min(start + max(_PIECES_AHEAD // self.batch_size, 1) * self.batch_size, len(self.samples().blocks))
        if self.kept is None and ahead > stop:
            with suppress(InputError, OSError, DamagedError):  # of a later batch, perhaps
                self._pieces = (start, ahead, self._read_pieces(start, ahead))
                return self._pieces[2].between(0, self.batch_size)
        with ReachableStream(self.trainable.store, self.trainable.stream):
            return self._read_pieces(start, stop)

    def asked_pieces(self, start: int) -> Pieces | None:
        """Return the same where batches are to carry them to another process."""
        return self.pieces(start) if self.sends_documents else None

    def _read_pieces(self, first: int, stop: int) -> Pieces:
        places = self.places(first, stop)
        partitions = np.flatnonzero(np.bincount(places.partitions)).tolist()
        parts = []
        for partition in partitions:
            mine = np.flatnonzero(places.partitions == partition)
            parts.append((mine, self.trainable.reader(partition).pieces_of(places.blocks[mine])))
        return join_pieces(parts, len(places.blocks))


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
        sends_documents: bool = False,
    ) -> None:
        self.trainable = trainable
        self._ranks = ranks
        self._length = sequence_length
        self._skip = skip
        self._sends_documents = sends_documents
        self._tables: dict[EraOrder, _EraTable] = {}
        """Of the eras that the last chunk was from."""
        self._watch = MapWatch()
        self._most_samples = _FIRST_SAMPLES

    def read(self, first: int, steps: int, segments: SegmentOrder | None = None) -> Chunk | None:
        """Return the next steps from sample ``first`` on, ``steps`` at most, and at first fewer; None if none is there.

        With ``segments``, blocks are read view by view, and only when all that are read side by side are there.

        Raises:
            as in `TrainableSamples.ready`; and DamagedError where a block is not what was committed.

        """
        steps = min(steps, max(self._most_samples // self._ranks.batch_size, 1))
        ready = self._ranks.steps_in(self._ready(first, steps * self._ranks.turn, segments))
        if not ready:
            return None
        self._most_samples *= 4
        samples = self._ranks.samples(first, ready)
        if segments is None:
            items = self.trainable.items(samples)
        else:
            items = self.trainable.items_in_any_order(segments.numbers(samples))
        if self._skip or any(order.blocks > _TABLE_BLOCKS for order, _ in items):
            return self.find(items, ready)
        if not self._watch.look(tokens for table in self._tables.values() for tokens in table.maps):
            self._tables = {}  # a repair put other files in their place, or they were changed
        orders = dict.fromkeys(order for order, _ in items)
        self._tables = {order: self._tables.get(order) or _EraTable(order, self.trainable) for order in orders}
        view_bytes = self._length * self.trainable.dtype.itemsize
        try:
            addresses = [self._tables[order].addresses(part, view_bytes) for order, part in items]
        except DamagedError:  # a repair will put another file in the place of what was looked up
            self._tables = {}
            raise
        maps = [tokens for table in self._tables.values() for tokens in table.maps]
        crcs = [found for order, part in items if (found := self._tables[order].crcs(part)) is not None]
        return self._chunk(items, ready, np.concatenate(addresses), maps, crcs=np.concatenate(crcs) if crcs else None)

    def _ready(self, first: int, wanted: int, segments: SegmentOrder | None) -> int:
        """Return how many samples from ``first`` on can be read, ``wanted`` at most."""
        if segments is None:
            return self.trainable.ready(first, wanted)
        begin = segments.start(first)
        end = segments.start(first + wanted - 1) + segments.group
        there = begin + self.trainable.ready(begin, end - begin)
        return max(min(segments.end(there), first + wanted) - first, 0)

    def find(self, items: Items, steps: int = 1, *, batch_size: int | None = None) -> Chunk:
        """Return samples, one at least, as a chunk; costs nothing that grows with their eras.

        Its `stretches` are of use where the samples are ``steps`` whole steps of the rank; its `rows` always are. With
        ``batch_size``, they are one batch of so many.
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
        return self._chunk(items, steps, there, maps, kept=kept, batch_size=batch_size)

    def _chunk(
        self,
        items: Items,
        steps: int,
        addresses: Addresses,
        maps: list[Rows],
        *,
        kept: npt.NDArray[np.bool_] | None = None,
        crcs: Crcs | None = None,
        batch_size: int | None = None,
    ) -> Chunk:
        gathering = Gathering(addresses, self._length + 1, self.trainable.dtype, maps, self._watch)
        size = self._ranks.batch_size if batch_size is None else batch_size
        return Chunk(
            items,
            gathering,
            steps=steps,
            batch_size=size,
            trainable=self.trainable,
            kept=kept,
            crcs=crcs,
            sends_documents=self._sends_documents,
        )
