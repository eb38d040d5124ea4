"""Consecutive batches of one rank: where their samples are, and what is known of them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples import EraOrder, Numbers, Samples, Source, TrainableSamples, join, places_of, sources_of
from tokenmill.store import Pieces, join_pieces
from tokenmill.store.segment import Crcs, crcs_of_runs

from .gathering import Gathering, Rows
from .reachable import ReachableStream

_PIECES_AHEAD: Final = 512
"""Samples whose pieces are read in one go, those of the batches after the one that was asked for: a tenth of the cost
of reading them batch by batch."""

Items = Sequence[tuple[EraOrder, Numbers]]
"""Samples behind each other, as items of eras."""


class RowOptions(NamedTuple):
    """What comes with the rows of a stream."""

    sends_documents: bool = False
    """Whether batches carry their pieces to other processes."""
    loss_weight: float = 1.0


class DamagedRowError(Exception):
    """A row was not what was committed when it was copied: `Chunk.refuse` says which block, and raises for people."""

    def __init__(self, at: int) -> None:
        self.at = at
        """Its place among the samples of the chunk."""
        super().__init__(at)


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
        "options",
        "split",
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
        options: RowOptions,
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
        self.options = options
        self.split = 1
        """Rows of each sample, where sequences are shorter."""

    def rows(self) -> Rows:
        """Return the tokens of all samples that are there, ``[samples, sequence_length + 1]``."""
        return self._gathering.rows()

    @property
    def together(self) -> int:
        """How many samples `stretches` copies in one go."""
        return self.batch_size if self.kept is not None else self._gathering.together(self.batch_size)

    def stretches(self) -> Iterator[Rows]:
        """Yield the batches, one or several at a time: ``[batches, samples, sequence_length + 1]``.

        With `kept`, one at a time, and those samples of it that are there: none, perhaps.

        Raises:
            DamagedRowError: a block is not what was committed.
            DamagedError: a file was cut off since it was mapped.

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
        with self.trainable.lock:
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
        """Return where the rows of the samples ``[first, stop)`` are from, of those that are there."""
        found = Samples(*(column[first:stop] for column in self.samples()))
        found = found if self.kept is None else Samples(*(column[self.kept[first:stop]] for column in found))
        if self.split == 1:
            return found
        partitions, blocks, views = (np.repeat(column, self.split) for column in found)
        return Samples(partitions, blocks, views * self.split + np.arange(len(views)) % self.split)

    def pieces(self, start: int) -> Pieces:
        """Return the pieces of the batch that begins at this sample, read together with those of batches after it.

        Raises:
            InputError: the blocks were retired since.
            StoreError: the store is not there any more.
            DamagedError: the document table is damaged.

        """
        stop = start + self.batch_size
        if self.kept is None and self._pieces is not None and self._pieces[0] <= start < stop <= self._pieces[1]:
            begin = self._pieces[0]
            return self._pieces[2].between((start - begin) * self.split, (stop - begin) * self.split)
        steps = _PIECES_AHEAD // max(self.batch_size, 1)
        ahead = min(start + max(steps, 1) * self.batch_size, len(self.samples().blocks))
        if self.kept is None and ahead > stop:
            with suppress(InputError, OSError, DamagedError):  # of a later batch, perhaps
                self._pieces = (start, ahead, self._read_pieces(start, ahead))
                return self._pieces[2].between(0, self.batch_size * self.split)
        with ReachableStream(self.trainable.store, self.trainable.stream):
            return self._read_pieces(start, stop)

    def asked_pieces(self, start: int) -> Pieces | None:
        """Return the same where batches are to carry them to another process."""
        return self.pieces(start) if self.options.sends_documents else None

    def streams(self, first: int, stop: int) -> tuple[str, ...]:
        """Return the name of the stream of each row of the samples ``[first, stop)``, of those that are there."""
        count = stop - first if self.kept is None else int(self.kept[first:stop].sum())
        return (self.trainable.stream,) * (count * self.split)

    def loss_weights(self, first: int, stop: int) -> npt.NDArray[np.float32]:
        """Return what the loss of each of these rows counts."""
        return np.full(len(self.streams(first, stop)), self.options.loss_weight, np.float32)

    def sources(self, start: int, length: int) -> list[list[Source]]:
        """Return, for each row of the batch that begins at this sample, the records that its tokens came from.

        Raises:
            InputError: the blocks were retired since.
            StoreError: the store is not there any more.
            DamagedError: the document table is damaged.

        """
        places = self.places(start, start + self.batch_size)
        return self._sources_of(self.trainable, places, np.arange(len(places.blocks)), length)

    @staticmethod
    def _sources_of(trainable: TrainableSamples, places: Samples, rows: Numbers, length: int) -> list[list[Source]]:
        with ReachableStream(trainable.store, trainable.stream), trainable.lock:
            return [
                sources_of(trainable.reader(partition), block, view, length)
                for partition, block, view in places_of(Samples(*(column[rows] for column in places)))
            ]

    def _read_pieces(self, first: int, stop: int) -> Pieces:
        places = self.places(first, stop)
        partitions = np.flatnonzero(np.bincount(places.partitions)).tolist()
        parts = []
        for partition in partitions:
            mine = np.flatnonzero(places.partitions == partition)
            parts.append((mine, self.trainable.pieces_of(partition, places.blocks[mine])))
        return join_pieces(parts, len(places.blocks))
