"""The one sequence of samples that all ranks share: arithmetic on sample numbers and eras, no I/O.

A sample is a view of a block: ``sequence_length + 1`` tokens, of which x and y overlap. A block of ``block_tokens`` has
``(block_tokens - 1) / sequence_length`` views, each beginning with the last token of the one before. The sequence goes
through the eras in their order, once in each pass, and inside an era over its samples (blocks by partition and number,
each with its views) in the order of a permutation of (seed, pass, era). Views are permuted like blocks: several views
of one block in one batch would train on the same document.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.eras import Era, Permutation
from tokenmill.errors import InputError
from tokenmill.store import StreamInfo

Numbers = npt.NDArray[np.int64]

_STORED: Final = 1 << 20
"""Most samples of an era whose order is computed at once and kept, in 8 MiB; parts of larger eras are large enough."""


class Samples(NamedTuple):
    """The places of samples: int64 arrays, ``[samples]`` each."""

    partitions: Numbers
    blocks: Numbers
    views: Numbers
    """The number of its view in the block, from 0."""


def join(parts: Iterable[Samples]) -> Samples:
    """Concatenate samples."""
    found = list(parts) or [Samples(*(np.empty(0, np.int64) for _ in Samples._fields))]
    return found[0] if len(found) == 1 else Samples(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


class EraOrder:
    """The samples of one era in the order of one pass."""

    def __init__(
        self, era: Era, *, views: int, shuffle: bool, seed: int, passed: int, whole_blocks: bool = False
    ) -> None:
        """Prepare the order; the cost does not depend on the era's size.

        Args:
            era: an era with blocks.
            views: samples in each block.
            shuffle: whether they are permuted; if not, they come by partition and number.
            seed: the run's.
            passed: how many passes were made before this one.
            whole_blocks: whether the views of a block stay together, in their order.
        """
        self.era = era.number
        self.samples = era.blocks * views
        self.blocks = era.blocks
        self.views = views
        self._together = views if whole_blocks else 1
        """Samples that are permuted as one."""
        units = self.samples // self._together
        self._order = Permutation(units, seed=seed, passed=passed, era=era.number) if shuffle else None
        parts = [(partition, part) for partition, part in enumerate(era.ranges) if part.blocks]
        self.ranges = [(partition, part.first, part.stop) for partition, part in parts]
        """The blocks ``[first, stop)`` of each partition that has some, in the order in which items number them."""

    def items(self, positions: Numbers) -> Numbers:
        """Return the items at these positions, in ``range(samples)``: samples numbered by partition, block and view."""
        if self._order is None:
            return positions
        units, within = np.divmod(positions, self._together) if self._together > 1 else (positions, 0)
        found = self._whole[units] if len(self._order) <= _STORED else self._order(units)
        return found if self._together == 1 else found * self._together + within

    def samples_of(self, items: Numbers) -> Samples:
        """Return the samples that have these item numbers."""
        blocks, views = (items, np.zeros_like(items)) if self.views == 1 else np.divmod(items, self.views)
        partitions, starts, shifts = self._parts
        parts = np.searchsorted(starts, blocks, side="right") - 1
        return Samples(partitions[parts], blocks + shifts[parts], views)

    def position_of(self, partition: int, block: int, view: int) -> int:
        """Return the position of a sample of the era in this order: the inverse of `items` and `samples_of`."""
        partitions, _, shifts = self._parts
        part = int(np.searchsorted(partitions, partition))
        item = (block - int(shifts[part])) * self.views + view
        if self._order is None:
            return item
        unit, within = divmod(item, self._together)
        return int(self._order.inverse(np.array([unit]))[0]) * self._together + within

    @cached_property
    def _parts(self) -> tuple[Numbers, Numbers, Numbers]:
        """Per range: its partition, the index of its first block in the era, and a block's number minus its index."""
        partitions, firsts, stops = np.array(self.ranges, np.int64).reshape(-1, 3).T
        starts = np.cumsum(stops - firsts) - (stops - firsts)
        return partitions, starts, firsts - starts

    @cached_property
    def _whole(self) -> Numbers:
        return self._order(np.arange(len(self._order))) if self._order is not None else np.arange(self.samples)


@dataclass(frozen=True, slots=True)
class SegmentOrder:
    """Which samples come when where blocks are read view by view: a step takes one view of each of its blocks.

    A run's samples count what is delivered: a global batch of views 0, one of views 1 of the same blocks, and so on.
    `numbers` are those of an order that keeps the views of each block together (`EraOrder`).
    """

    base: int
    """The number of the sample with which steps of this size began; a multiple of ``views``."""
    global_batch: int
    """Samples of all ranks in one step: blocks that are read side by side."""
    views: int

    @property
    def group(self) -> int:
        """Samples of blocks that are read side by side."""
        return self.global_batch * self.views

    def start(self, sample: int) -> int:
        """Return with which sample the blocks of this sample begin."""
        return sample - (sample - self.base) % self.group

    def end(self, total: int) -> int:
        """Return how many of ``total`` samples are in whole groups."""
        return max(self.start(total), self.base)

    def numbers(self, samples: Numbers) -> Numbers:
        """Return where these samples are in the order that keeps blocks together."""
        groups, within = np.divmod(samples - self.base, self.group)
        views, blocks = np.divmod(within, self.global_batch)
        found: Numbers = self.base + (groups * self.global_batch + blocks) * self.views + views
        return found

    def samples(self, numbers: Numbers) -> Numbers:
        """Return the samples that have these numbers there: the inverse of `numbers`."""
        blocks, views = np.divmod(numbers - self.base, self.views)
        groups, blocks = np.divmod(blocks, self.global_batch)
        found: Numbers = self.base + (groups * self.views + views) * self.global_batch + blocks
        return found


@dataclass(frozen=True, slots=True)
class Ranks:
    """How the samples of each step are divided among processes."""

    batch_size: int
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    """The number of this process among those that read for this rank, from 0: they take its steps in turns."""
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise InputError(f"worker {self.worker} of {self.workers}: give a number from 0 to below theirs")
        if self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise InputError(
                f"batch_size {self.batch_size}, rank {self.rank}, world_size {self.world_size}: give a batch_size "
                "above 0 and a rank from 0 to below world_size"
            )

    @property
    def global_batch(self) -> int:
        """Samples of all ranks in one step."""
        return self.batch_size * self.world_size

    @property
    def turn(self) -> int:
        """Samples of all ranks in one step of each worker."""
        return self.global_batch * self.workers

    def steps_in(self, samples: int) -> int:
        """Return how many steps of this process are complete with the first ``samples`` samples."""
        return max(samples // self.global_batch - self.worker + self.workers - 1, 0) // self.workers

    def samples(self, first: int, steps: int, rotated_from: int | None = None) -> Numbers:
        """Return the numbers of this process's samples in the next ``steps`` of its steps, ``[steps * batch_size]``.

        The first turn of the workers begins with sample ``first``. Together, ranks and workers take each sample once.
        With the number of that turn's first step, the rows of each step are rotated (`rotation`), and do not ascend.
        """
        turns = self.worker + self.workers * np.arange(steps)
        places = self.rank * self.batch_size + np.arange(self.batch_size)
        if rotated_from is not None:
            places = (places + rotation(rotated_from + turns, self.global_batch)[:, None]) % self.global_batch
        found: Numbers = (first + self.global_batch * turns[:, None] + places).reshape(-1)
        return found

    def samples_of_last(self, first: int, samples: int) -> Numbers:
        """Return the numbers of this rank's samples in a step that has so few, from ``first`` on; none, perhaps."""
        begin, end = (edge * samples // self.world_size for edge in (self.rank, self.rank + 1))
        return np.arange(first + begin, first + end)


def rotation(steps: Numbers, global_batch: int) -> Numbers:
    """Return how far each step's samples are moved on: its row j has its sample ``(j + rotation) % global_batch``.

    Multiples of the golden ratio: each row meets all places of a step equally often. Neighbours stay together.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)  # the fractional part of the golden ratio, of 2**64
    fractions = (steps.astype(np.uint64) * golden) >> np.uint64(32)
    return (fractions * np.uint64(global_batch) >> np.uint64(32)).astype(np.int64) % global_batch


def count_views(info: StreamInfo, sequence_length: int) -> int:
    """Return how many samples of a length a block has; raises InputError where it does not divide the block's."""
    whole = info.block_tokens - 1
    if sequence_length < 1 or whole % sequence_length:
        fitting = [str(length) for length in range(whole, 0, -1) if whole % length == 0][:4]
        raise InputError(
            f"sequence_length is {sequence_length}, but blocks of {info.name} have {info.block_tokens} tokens, for "
            f"sequences of {whole}: give {' or '.join(fitting)}, or mill a stream of another length"
        )
    return whole // sequence_length
