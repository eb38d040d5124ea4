"""Where samples are in memory: looked up in a table for each era."""

from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.samples import EraOrder, Numbers, TrainableSamples
from tokenmill.store import MapWatch
from tokenmill.store.segment import Crcs

from .gathering import Addresses, Gathering, Rows, rows_of

_UNKNOWN: Final = -1
"""No address."""


class LocatedRows(NamedTuple):
    """Where samples are in memory."""

    addresses: Addresses
    """Of each; of those that are not there, any number."""
    maps: list[Rows]
    """The arrays that they are addresses of."""
    kept: npt.NDArray[np.bool_] | None = None
    """Which of them are there; None: all."""
    crcs: Crcs | None = None
    """What their CRCs must be; None: they are no whole blocks, or checked already, or not at all."""

    def gathering(self, columns: int, dtype: "np.dtype[np.unsignedinteger]", watch: MapWatch) -> Gathering:
        """Return what copies those that are there."""
        there = self.addresses if self.kept is None else self.addresses[self.kept]
        return Gathering(there, columns, dtype, self.maps, watch)


class EraTable:
    """Where the blocks of one era are in memory: to look them up is cheaper than to find them.

    A segment is mapped when the first of its blocks is asked for: an era of thousands costs nothing at its beginning.
    """

    def __init__(self, order: EraOrder, trainable: TrainableSamples, *, checks_copies: bool) -> None:
        self.maps: list[Rows] = []
        """Of all that were asked for."""
        self._views = order.views
        self._trainable = trainable
        self._checks_copies = checks_copies and trainable.checks and order.views == 1
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
