"""Which era, in which pass, holds a sample of a sequence: arithmetic over the eras that a store has."""

from typing import NamedTuple

from tokenmill.samples.position import SequenceId
from tokenmill.store import EraReader


class EraPlace(NamedTuple):
    """An era in a pass of a sequence."""

    era: int
    passed: int
    """How many passes were complete before."""
    start: int
    """The number of the era's first sample in this pass."""


class EraPlaces:
    """Finds the eras of samples, as far as these are known as of the last ``refresh`` of ``eras``."""

    def __init__(self, eras: EraReader, sequence: SequenceId, views: int) -> None:
        """Take the eras of the stream of a sequence; each block has so many samples."""
        self.eras = eras
        self._sequence = sequence
        self._views = views

    def total(self) -> int | None:
        """Return how many samples the sequence has; None while its last era has not come."""
        one = self.in_pass()
        return None if one is None else one * self._sequence.passes

    def in_pass(self) -> int | None:
        """Return how many samples each pass has; None while the last era has not come."""
        first, stop = self._sequence.eras
        if stop is None or stop > self.eras.eras:
            if not self.eras.ended:
                return None
            stop = self.eras.eras
        return self._between(min(first, stop), stop)

    def last_era(self) -> int:
        """Return the last era of the sequence that is known, also the end marker; -1 if none is."""
        stop = self._sequence.eras[1]
        return (self.eras.eras if stop is None else min(stop, self.eras.eras)) - 1

    def place(self, sample: int) -> EraPlace | None:
        """Return where a sample is; None where the eras that are known do not reach."""
        first = self._sequence.eras[0]
        if sample < 0 or self.eras.eras <= first:
            return None
        one = self.in_pass()
        passed = 0
        if one is not None:
            if sample >= one * self._sequence.passes:
                return None
            passed = sample // one
        begin = passed * (one or 0)
        block = self.eras.blocks_before(first) + (sample - begin) // self._views
        if block >= self.eras.blocks:
            return None
        number = self.eras.find(block)
        return EraPlace(number, passed, begin + self._between(first, number))

    def samples_in(self, number: int) -> int:
        """Return how many samples an era has that is known."""
        return self._between(number, number + 1)

    def first_samples(self, number: int) -> list[int]:
        """Return the number of an era's first sample in each pass; empty if the sequence has no such era.

        As far as that is known: while the last era has not come, only the first pass is.
        """
        first, stop = self._sequence.eras
        if not first <= number < (self.eras.eras if stop is None else min(stop, self.eras.eras)):
            return []
        one = self.in_pass()
        within = self._between(first, number)
        return [within + passed * (one or 0) for passed in range(1 if one is None else self._sequence.passes)]

    def _between(self, first: int, stop: int) -> int:
        """Return the samples of the eras ``[first, stop)``."""
        return (self.eras.blocks_before(stop) - self.eras.blocks_before(first)) * self._views
