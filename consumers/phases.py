"""Batch sizes and sequence lengths that change with the steps of a run.

Samples have the greatest length of all, so which sample comes when does not depend on lengths. A step of a smaller one
has each of its samples as several rows, views that overlap by a token: as many tokens, and the same ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tokenmill.errors import InputError
from tokenmill.samples import Position, Ranks

from .arguments import ranks_of, shown, whole
from .gathering import Rows


class Phase(NamedTuple):
    """Steps that are made alike."""

    first_step: int
    ranks: Ranks
    split: int
    """Rows of each sample."""


class Phases:
    """What the steps of a run are like, from step 0 on."""

    def __init__(self, batch_size: Any, sequence_length: Any, rank: Any, world_size: Any, worker: Any) -> None:
        """Take numbers, or schedules: pairs of a step and the number from there on.

        Raises:
            InputError: one of these cannot be, or a length does not divide the greatest.

        """
        sizes, lengths = _points("batch_size", batch_size), _points("sequence_length", sequence_length)
        for _, length in lengths:
            whole("sequence_length", length, 1, "tokens")
        self.length = max(length for _, length in lengths)
        """Tokens of a sample."""
        for _, length in lengths:
            if self.length % length:
                raise InputError(
                    f"sequence_length is {shown(sequence_length)}, and {length} does not divide {self.length}: give "
                    "lengths that divide the greatest one"
                )
        self.lengths = lengths
        """From which step on which length."""
        self._phases = []
        for step in sorted({first for first, _ in (*sizes, *lengths)}):
            ranks = ranks_of(_at(sizes, step), rank, world_size, worker)
            self._phases.append(Phase(step, ranks, self.length // _at(lengths, step)))
        self.first = self._phases[0].ranks

    def at(self, step: int) -> Phase:
        """Return what a step is like."""
        return [phase for phase in self._phases if phase.first_step <= step][-1]

    def steps_left(self, step: int) -> int | None:
        """Return how many steps from this one on are alike; None: all."""
        later = [phase.first_step for phase in self._phases if phase.first_step > step]
        return later[0] - step if later else None

    def plan(self, position: Position) -> Position:
        """Return a position from which on steps take as many samples as here."""
        return position.with_plan([(phase.first_step, phase.ranks.global_batch) for phase in self._phases])

    def merged(self, saved: Any, step: int) -> list[tuple[int, int]]:
        """Return from which step on which length was, as a state says, and is, from this step on.

        Raises:
            InputError: a state says something else.

        """
        if saved is None:
            return self.lengths
        made = [(first, length) for first, length in _points("lengths", saved) if first < step]
        return [*made, (step, _at(self.lengths, step)), *(point for point in self.lengths if point[0] > step)]

    @property
    def changes_batch(self) -> bool:
        """Whether steps take other numbers of samples."""
        return len({phase.ranks.batch_size for phase in self._phases}) > 1

    @property
    def largest_batch(self) -> int:
        """The most samples of this rank in a step."""
        return max(phase.ranks.batch_size for phase in self._phases)


def turned(ranks: Ranks, steps: int) -> Ranks:
    """Return ranks whose workers go on with their turns so many steps later."""
    return replace(ranks, worker=(ranks.worker - steps) % ranks.workers)


def split_rows(stretch: Rows, split: int) -> Rows:
    """Return batches of samples, ``[batches, samples, length + 1]``, with each as so many rows."""
    if split == 1:
        return stretch
    batches, samples, columns = stretch.shape
    length = (columns - 1) // split
    views = np.lib.stride_tricks.sliding_window_view(stretch, length + 1, axis=2)[:, :, ::length]
    return np.ascontiguousarray(views).reshape(batches, samples * split, length + 1)


def _points(name: str, value: Any) -> list[tuple[int, Any]]:
    """Return a schedule; raises InputError where its steps do not ascend from 0."""
    if not isinstance(value, list):
        return [(0, value)]
    pairs = [one for one in value if isinstance(one, tuple | list) and len(one) == 2]  # noqa: PLR2004 - a pair
    if not value or len(pairs) < len(value):
        raise InputError(f"{name} is {shown(value)}: give a number, or pairs of a step and the number from there on")
    found = [(whole(f"a step of {name}", step, 0, "steps"), number) for step, number in pairs]
    if found[0][0] or any(before[0] >= after[0] for before, after in pairwise(found)):
        raise InputError(f"{name} is {shown(value)}: give steps that ascend, the first one 0")
    return found


def _at(points: Sequence[tuple[int, Any]], step: int) -> Any:
    return [value for first, value in points if first <= step][-1]
