"""From numbers of samples to rows of tokens: where samples are in memory, and copying them many at a time.

The samples of a batch are anywhere in the maps of several segments, and numpy copies fastest out of one array. So the
places are given to it as items of one array from the lowest of them to the highest: nothing between them is touched,
and nothing is copied twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples.sequence import EraOrder, Numbers, Ranks, Samples, SegmentOrder, join
from tokenmill.samples.tracing import Source, places_of, sources_of
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import MapWatch, Pieces, join_pieces
from tokenmill.store.segment import Crcs, crcs_of_runs

from .prefetch import EraReadAhead
from .waiting import ReachableStream

Rows = npt.NDArray[np.unsignedinteger]

Items = Sequence[tuple[EraOrder, Numbers]]
"""Samples behind each other, as items of eras."""
_TABLE_BLOCKS: Final = 1 << 20
"""Blocks of an era up to which it is kept where each is in memory, in 8 MiB at most."""


def addresses_of(tokens: Rows, starts: npt.NDArray[np.int64]) -> Numbers:
    """Return where in memory tokens stand, counted through an array's rows, for as long as that is kept."""
    return starts * tokens.itemsize + int(tokens.__array_interface__["data"][0])


def samples_of(items: Items) -> Samples:
    """Return samples that are items of eras."""
    return join(order.samples_of(numbers) for order, numbers in items)


class Gathering:
    """Rows of ``columns`` tokens, each from an address on, that are copied when they are asked for.

    Keeps the arrays that hold them. What is copied into is new, and so the memory of the copy before, still in the
    core's cache, if that was let go.
    """

    __slots__ = ("_columns", "_dtype", "_items", "_maps", "_memory", "row_bytes", "watch")

    def __init__(
        self,
        addresses: Numbers,
        columns: int,
        dtype: "np.dtype[np.unsignedinteger]",
        maps: Sequence[Rows],
        watch: MapWatch,
    ) -> None:
        """Prepare to copy ``columns`` tokens from `addresses_of` maps, at whose files ``watch`` looks before."""
        self.watch = watch
        self.row_bytes = columns * dtype.itemsize
        self._maps = maps
        self._columns = columns
        self._dtype = dtype
        first = int(addresses.min()) if len(addresses) else 0
        self._items = (addresses - first)[:, None]
        count = int(self._items.max(initial=-1)) + 1
        self._memory = np.asarray(_Memory(first, count, self.row_bytes))

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """Return some rows, ``[rows, columns]``, in memory of their own; raises DamagedError if a file was cut off."""
        self.watch.look(self._maps)
        return self._memory[self._items[start:stop]].view(self._dtype)

    def stretches(self, size: int) -> Iterator[Rows]:
        """Yield batches of ``size``, several in one memory: ``[batches, size, columns]``; to keep one keeps 512 KiB."""
        together = self.together(size)
        for start in range(0, len(self._items), together):
            yield self.rows(start, start + together).reshape(-1, size, self._columns)

    def together(self, size: int) -> int:
        """Return how many rows `stretches` copies in one go: several batches that fit into a core's own cache."""
        return max((512 << 10) // max(size * self.row_bytes, 1), 1) * size


class _Memory:
    """Items of ``width`` bytes, one beginning at each byte."""

    def __init__(self, first: int, count: int, width: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (first, True),  # read-only
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{width}",
            "version": 3,  # of https://numpy.org/doc/stable/reference/arrays.interface.html
        }


class LocatedRows(NamedTuple):
    """Where samples are in memory."""

    addresses: Numbers
    """Of each; of those that are not there, any number."""
    maps: list[Rows]
    kept: npt.NDArray[np.bool_] | None = None
    """Which of them are there; None: all."""
    crcs: Crcs | None = None
    """What their CRCs must be; None: they are no whole blocks, or checked already, or not at all."""


class EraTable:
    """Where an era's blocks are in memory; a segment is mapped when the first of its blocks is asked for."""

    def __init__(self, order: EraOrder, trainable: TrainableSamples, *, checks_copies: bool) -> None:
        self.maps: list[Rows] = []
        self._views = order.views
        self._trainable = trainable
        self._checks_copies = checks_copies and trainable.checks and order.views == 1
        self._starts = np.full(order.blocks, -1, np.int64)
        self._crcs = np.empty(order.blocks if self._checks_copies else 0, np.uint32)
        self._sound = np.zeros(order.blocks, np.bool_) if trainable.checks and not self._checks_copies else None
        """Which of the blocks need not be checked in place any more; None: none needs it."""
        counts = [stop - first for _, first, stop in order.ranges]
        self._ranges = list(zip(order.ranges, accumulate(counts, initial=0)))  # noqa: B905 - one sum more than ranges
        """With each partition's blocks, how many there are in the partitions before."""

    def addresses(self, items: Numbers, view_bytes: int) -> Numbers:
        """Return where items begin; a view begins with the last token of the one before. Raises DamagedError."""
        blocks, views = (items, None) if self._views == 1 else np.divmod(items, self._views)
        starts = self._starts[blocks]
        if starts.min(initial=0) < 0:
            self._map(blocks[starts < 0])
            starts = self._starts[blocks]
        if self._sound is not None and len(unknown := blocks[~self._sound[blocks]]):
            self._check(unknown, self._sound)
        return starts if views is None else starts + views * view_bytes

    def crcs(self, items: Numbers) -> Crcs | None:
        """Return what the CRCs of items must be; None where they are no blocks, or need no check."""
        return self._crcs[items] if self._checks_copies else None

    def _map(self, blocks: Numbers) -> None:
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
                tokens, crcs = next(reader.between(*bounds, with_crcs=self._checks_copies))
                if crcs is not None:
                    self._crcs[span] = crcs
                self._starts[span] = addresses_of(tokens, np.arange(len(tokens)) * tokens.shape[1])
                self.maps.append(tokens)

    def _check(self, blocks: Numbers, sound: npt.NDArray[np.bool_]) -> None:
        for (partition, first, stop), begin in self._ranges:
            mine = blocks[(begin <= blocks) & (blocks < begin + stop - first)]
            for segment, marks in self._trainable.reader(partition).sound(mine + first - begin) if len(mine) else ():
                low, high = max(segment, first), min(segment + len(marks), stop)
                sound[begin + low - first : begin + high - first] = marks[low - segment : high - segment]


class RowOptions(NamedTuple):
    """What comes with the rows of a stream."""

    sends_documents: bool = False
    """Whether batches carry their pieces to other processes."""
    loss_weight: float = 1.0


class StreamSamples(NamedTuple):
    """The samples of a chunk that are of one stream."""

    name: str
    trainable: TrainableSamples
    options: RowOptions
    mine: Numbers | None
    """Which samples of the chunk these are; None: all."""
    items: Items


class Chunk:
    """Consecutive batches of one rank: where their samples are."""

    def __init__(
        self,
        parts: Sequence[StreamSamples],
        found: LocatedRows,
        columns: int,
        watch: MapWatch,
        *,
        steps: int,
        batch_size: int,
    ) -> None:
        """Take samples and where their rows were found; those with CRCs are whole blocks, which `stretches` checks."""
        self.steps = steps
        self.batch_size = batch_size
        self.kept = found.kept
        """Which of the samples are there: with ``on_damage="skip"``, those that are not damaged; None: all."""
        self.split = 1
        """Rows of each sample, where sequences are shorter."""
        self._parts = parts
        there = found.addresses if self.kept is None else found.addresses[self.kept]
        self._gathering = Gathering(there, columns, parts[0].trainable.info.dtype, found.maps, watch)
        self._crcs = found.crcs
        self._pieces: tuple[int, int, Pieces] | None = None
        """Those of the samples ``[start, stop)``, of those that are there."""

    def rows(self) -> Rows:
        """Return the tokens of all samples that are there, ``[samples, sequence_length + 1]``."""
        return self._gathering.rows()

    @property
    def together(self) -> int:
        """How many samples `stretches` copies in one go."""
        return self.batch_size if self.kept is not None else self._gathering.together(self.batch_size)

    def stretches(self) -> Iterator[Rows]:
        """Yield the batches, one or several at a time: ``[batches, samples, sequence_length + 1]``.

        With `kept`, one at a time, and those samples of it that are there: none, perhaps. Raises DamagedError where a
        block is not what was committed, or a file was cut off.
        """
        size = self.batch_size
        if not size:
            return iter([self.rows()[None]])
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
                rows = zip(stretch.reshape(-1, stretch.shape[-1]), crcs[start:].tolist(), strict=False)
                at = [crc32(row) == wanted for row, wanted in rows].index(False)
                whole = at // self.batch_size
                if whole:
                    yield stretch[:whole]
                self._refuse(start + at)
            yield stretch
            del stretch  # its memory can be the next one's
            start += together

    def _refuse(self, at: int) -> NoReturn:
        """Raise DamagedError for the sample at this place, whose block is not what was committed."""
        samples, trainable = self.samples, self._parts[int(self._streams[at])].trainable
        partition, block = int(samples.partitions[at]), int(samples.blocks[at])
        self._gathering.watch.expire()  # a repair will put another file in its place, or has done so
        with trainable.lock:
            trainable.reader(partition).read(block)
        raise DamagedError(
            f"block {block} of partition {partition} of {trainable.stream} was not what was committed when it was "
            "read, and is now",
            "Its file was repaired or changed meanwhile: iterate again, and test the host's memory if this comes again",
        )

    @cached_property
    def samples(self) -> Samples:
        """Where all samples are in their streams, also those that are not there."""
        parts = [samples_of(part.items) for part in self._parts]
        if self._parts[0].mine is None:
            return parts[0]
        found = Samples(*(np.empty(self.steps * self.batch_size, np.int64) for _ in Samples._fields))
        for part, samples in zip(self._parts, parts, strict=True):
            for column, values in zip(found, samples, strict=True):
                column[part.mine] = values
        return found

    @cached_property
    def _streams(self) -> Numbers:
        """Of each sample, the index of its stream among the parts."""
        found = np.zeros(len(self.samples.blocks), np.int64)
        for index, part in enumerate(self._parts[1:], 1):
            found[part.mine] = index
        return found

    def _of_rows(self, values: Numbers, first: int, stop: int) -> Numbers:
        """Return what the rows of the samples ``[first, stop)`` have, of those that are there."""
        found = values[first:stop] if self.kept is None else values[first:stop][self.kept[first:stop]]
        return found if self.split == 1 else np.repeat(found, self.split)

    def places(self, first: int, stop: int) -> Samples:
        """Return where the rows of the samples ``[first, stop)`` are from, of those that are there."""
        partitions, blocks, views = (self._of_rows(column, first, stop) for column in self.samples)
        if self.split > 1:
            views = views * self.split + np.arange(len(views)) % self.split
        return Samples(partitions, blocks, views)

    def pieces(self, start: int) -> Pieces:
        """Return the pieces of the batch that begins at this sample, read together with those of batches after it.

        Raises InputError, StoreError where blocks or store are not there any more; DamagedError for the document table.
        """
        stop = start + self.batch_size
        held = self._pieces  # another thread may be reading those of later batches
        if self.kept is None and held is not None and held[0] <= start < stop <= held[1]:
            return held[2].between((start - held[0]) * self.split, (stop - held[0]) * self.split)
        steps = 512 // max(self.batch_size, 1)  # a tenth of the cost of reading them batch by batch
        ahead = min(start + max(steps, 1) * self.batch_size, len(self.samples.blocks))
        if self.kept is None and ahead > stop:
            with suppress(InputError, OSError, DamagedError):  # of a later batch, perhaps
                self._pieces = held = (start, ahead, self._read_pieces(start, ahead))
                return held[2].between(0, self.batch_size * self.split)
        with ReachableStream(*((one.store, one.stream) for one in (part.trainable for part in self._parts))):
            return self._read_pieces(start, stop)

    def asked_pieces(self, start: int) -> Pieces | None:
        """Return the same where batches are to carry them to another process."""
        return self.pieces(start) if self._parts[0].options.sends_documents else None

    def streams(self, first: int, stop: int) -> tuple[str, ...]:
        """Return the name of the stream of each row of the samples ``[first, stop)``, of those that are there."""
        return tuple(self._parts[index].name for index in self._of_rows(self._streams, first, stop).tolist())

    def loss_weights(self, first: int, stop: int) -> npt.NDArray[np.float32]:
        """Return what the loss of each of these rows counts."""
        weights = np.array([part.options.loss_weight for part in self._parts], np.float32)
        return weights[self._of_rows(self._streams, first, stop)]

    def sources(self, start: int, length: int) -> list[list[Source]]:
        """Return the records of each row of the batch that begins at this sample; raises as `pieces`."""
        stop = start + self.batch_size
        places, streams = places_of(self.places(start, stop)), self._of_rows(self._streams, start, stop).tolist()
        found: list[list[Source]] = [[] for _ in streams]
        for index in {*streams}:
            trainable = self._parts[index].trainable
            with ReachableStream((trainable.store, trainable.stream)), trainable.lock:
                for row in (row for row, stream in enumerate(streams) if stream == index):
                    partition, block, view = places[row]
                    found[row] = sources_of(trainable.reader(partition), block, view, length)
        return found

    def _read_pieces(self, first: int, stop: int) -> Pieces:
        places, streams = self.places(first, stop), self._of_rows(self._streams, first, stop)
        found = []
        for index, partition in sorted({*zip(streams.tolist(), places.partitions.tolist(), strict=True)}):
            mine = np.flatnonzero((streams == index) & (places.partitions == partition))
            trainable = self._parts[index].trainable
            found.append((mine, trainable.pieces_of(partition, places.blocks[mine])))
        return join_pieces(found, len(places.blocks))


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
        options: RowOptions | None = None,
    ) -> None:
        self.trainable = trainable
        self._ahead = ahead
        self._is_in_memory = True
        """Whether all that is to be located next is: else it is read sample by sample."""
        self.ranks = ranks
        """Those of the steps that are read next."""
        self.columns = sequence_length + 1
        self._skip = skip
        self.options = options or RowOptions()
        self._tables: dict[EraOrder, EraTable] = {}
        self._watch = MapWatch()
        self._most_samples = 256
        """To be looked up next: few at first, as each may be in another segment, then four times as many."""
        self.checks_copies = True
        """Whether whole blocks may be checked after they were copied: where all samples of a batch are whole blocks."""

    def read(self, first: int, steps: int, segments: SegmentOrder | None = None) -> Chunk | None:
        """Return the next steps from sample ``first`` on, ``steps`` at most, and at first fewer; None if none is there.

        With ``segments``, blocks are read view by view, when all that are read side by side are there. Raises as
        `TrainableSamples.ready`, and DamagedError where a block is not what was committed.
        """
        steps = min(steps, max(self._most_samples // self.ranks.batch_size, 1))
        ready = self.ranks.steps_in(self._ready(first, steps * self.ranks.turn, segments))
        if not ready:
            return None
        self._most_samples *= 4
        samples, following = self.ranks.samples(first, ready), (first + ready * self.ranks.turn, ready)
        if segments is None:
            items = self.trainable.items(samples)
        else:
            items, following = self.trainable.items_in_any_order(segments.numbers(samples)), (0, 0)
        return self._chunk(items, ready, self.locate(items, *following))

    def read_last(self, first: int, samples: int) -> Chunk | None:
        """Return the last step, this process's of a turn from sample ``first`` on, of so few; None: not there yet."""
        begin = first + self.ranks.worker * self.ranks.global_batch
        if self.trainable.ready(begin, samples) < samples:
            return None
        mine = self.ranks.samples_of_last(begin, samples)
        with self.trainable.lock:
            return self.find(self.trainable.items(mine))

    def reach(self, first: int, samples: int) -> None:
        """Have the eras of samples in memory before they are counted and located, where that is worth waiting for."""
        if self._ahead is not None and samples:
            self._is_in_memory = self._ahead.reach(first, first + samples - 1)

    def locate(self, items: Items, following: int = 0, steps: int = 0) -> LocatedRows:
        """Return where items are that were just counted; raises DamagedError where a block is not what was committed.

        Where they are read one by one, those of so many ``steps`` from sample ``following`` on are read meanwhile.
        """
        if self._ahead is not None and not self._is_in_memory:
            self._ahead.reach_rows(samples_of(items))
            is_cache = self.trainable.fetch is not None  # where the eras of these items would go before they are mapped
            wanted = 0 if is_cache else steps * self.ranks.turn
            if wanted and (ready := self.ranks.steps_in(self.trainable.ready(following, wanted))):
                self._ahead.begin_rows(self.trainable.locate(self.ranks.samples(following, ready)))
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
        view_bytes = (self.columns - 1) * self.trainable.info.dtype.itemsize
        try:
            addresses = [self._tables[order].addresses(part, view_bytes) for order, part in items]
        except DamagedError:  # a repair will put another file in the place of what was looked up
            self._tables = {}
            raise
        maps = [tokens for table in self._tables.values() for tokens in table.maps]
        crcs = [found for order, part in items if (found := self._tables[order].crcs(part)) is not None]
        return LocatedRows(np.concatenate(addresses), maps, crcs=np.concatenate(crcs) if crcs else None)

    def _ready(self, first: int, wanted: int, segments: SegmentOrder | None) -> int:
        if segments is None:
            self.reach(first, wanted)
            return self.trainable.ready(first, wanted, self.ranks.turn)
        begin = segments.start(first)
        end = segments.start(first + wanted - 1) + segments.group
        self.reach(begin, end - begin)
        there = begin + self.trainable.ready(begin, end - begin)
        return max(min(segments.end(there), first + wanted) - first, 0)

    def find(self, items: Items) -> Chunk:
        """Return samples as a chunk of one batch; costs nothing that grows with their eras."""
        found = self._search(items)
        return self._chunk(items, 1, found, len(found.addresses))

    def _search(self, items: Items) -> LocatedRows:
        samples = samples_of(items)
        addresses = np.zeros(len(samples.blocks), np.int64)
        kept = np.zeros(len(addresses), np.bool_) if self._skip else None
        maps: list[Rows] = []
        for partition in np.flatnonzero(np.bincount(samples.partitions)).tolist():
            mine = np.flatnonzero(samples.partitions == partition)
            for where, tokens, found in self.trainable.reader(partition).parts(samples.blocks[mine]):
                into = mine[where]
                starts = found * tokens.shape[1]
                if tokens.shape[1] != self.columns:  # a view begins with the last token of the one before
                    starts += samples.views[into] * (self.columns - 1)
                addresses[into] = addresses_of(tokens, starts)
                maps.append(tokens)
                if kept is not None:
                    kept[into] = True
        return LocatedRows(addresses, maps, kept=kept)

    def _chunk(self, items: Items, steps: int, found: LocatedRows, batch_size: int | None = None) -> Chunk:
        size = self.ranks.batch_size if batch_size is None else batch_size
        parts = [StreamSamples(self.trainable.stream, self.trainable, self.options, None, items)]
        return Chunk(parts, found, self.columns, self._watch, steps=steps, batch_size=size)
