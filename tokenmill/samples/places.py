"""Which era, in which pass, holds a sample of a sequence: arithmetic over the eras that a store has."""

from typing import NamedTuple

from tokenmill.samples.position import SequenceId
from tokenmill.store import EraReader


class EraPlace(NamedTuple):
    """An era in a pass of a sequence."""

    era: int
    """The era's number."""
    passed: int
    """How many passes were complete before."""
    start: int
    """The number of the era's first sample in this pass."""


class EraPlaces:
    """Finds the eras of samples, among the eras that the last ``refresh`` of ``eras`` found."""

    def __init__(self, eras: EraReader, sequence: SequenceId, views: int) -> None:
        """Use the eras of the sequence's stream; each block has ``views`` samples."""
        self.eras = eras
        self._sequence = sequence
        self._views = views

    def total(self) -> int | None:
        """Return how many samples the sequence has; None until its last era is there."""
        one = self.in_pass()
        return None if one is None else one * self._sequence.passes

    def in_pass(self) -> int | None:
        """Return how many samples each pass has; None until the last era is there."""
        first, stop = self._sequence.eras
        if stop is None or stop > self.eras.eras:
            if not self.eras.ended:
                return None
            stop = self.eras.eras
        return self._between(min(first, stop), stop)

    def last_era(self) -> int:
        """Return the number of the sequence's last known era, which may be the end marker; -1 if there is none."""
        stop = self._sequence.eras[1]
        return (self.eras.eras if stop is None else min(stop, self.eras.eras)) - 1

    def place(self, sample: int) -> EraPlace | None:
        """Return the era that holds a sample; None if no known era does."""
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
        """Return how many samples a known era has."""
        return self._between(number, number + 1)

    def first_samples(self, number: int) -> list[int]:
        """Return the number of an era's first sample in each pass; empty if the sequence has no such era.

        Until the sequence's last era is there, only the first pass is known and returned.
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
