"""Which blocks are which samples: arithmetic on ranges of blocks, no I/O."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """The blocks ``[first, stop)`` of one partition."""

    partition: int
    first: int
    stop: int

    @property
    def blocks(self) -> int:
        """How many blocks these are."""
        return self.stop - self.first


def count(runs: Iterable[Run]) -> int:
    """Return how many samples the runs hold: one per block."""
    return sum(run.blocks for run in runs)


def cut(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """Return the samples ``[start, stop)`` of the runs laid end to end, which hold as many at least."""
    found = []
    before = 0
    for run in runs:
        first = run.first + max(start - before, 0)
        last = min(run.first + stop - before, run.stop)
        if first < last:
            found.append(Run(run.partition, first, last))
        before += run.blocks
    return found
