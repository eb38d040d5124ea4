"""Batch sizes and sequence lengths that change with the steps of a run.

Samples have the greatest length of all, so which comes when does not depend on lengths. A step of a smaller one has
each sample as several rows, views that overlap by a token: the same tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from tokenmill.errors import InputError
from tokenmill.samples.sequence import Position, Ranks

from .arguments import DataRank, ranks_of, schedule_of, shown, whole
from .batch import Batch
from .transfer import CopyThread
from .sample_lookup import Chunk, DamagedRowError, Rows
from .transfer import Staging, open_staging


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

        Raises InputError where one of these cannot be, or a length does not divide the greatest.
        """
        self.data_rank = DataRank.of(rank, world_size)
        sizes, given = schedule_of("batch_size", batch_size), schedule_of("sequence_length", sequence_length)
        lengths = [(step, whole("sequence_length", length, 1, "tokens")) for step, length in given]
        self.length = max(length for _, length in lengths)
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
            ranks = ranks_of(_at(sizes, step), self.data_rank.rank, self.data_rank.world_size, worker)
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
        """Return from which step on which length was, by a state, and is, from this step on; raises InputError."""
        if saved is None:
            return self.lengths
        made = [(first, length) for first, length in schedule_of("lengths", saved) if first < step]
        return [*made, (step, _at(self.lengths, step)), *(point for point in self.lengths if point[0] > step)]

    def require_one(self, *, drops_last: bool) -> None:
        """Raise InputError where steps change: chunks that are read in order need rows that stay."""
        if not drops_last:
            raise InputError(
                "drop_last is False and in_order True, whose rows go on from step to step: give one of them"
            )
        if len(self._phases) > 1:
            raise InputError("in_order is True, where rows go on in the next step: give one batch_size and length")

    @property
    def batch_sizes(self) -> set[int]:
        """How many samples of this rank steps take."""
        return {phase.ranks.batch_size for phase in self._phases}


class Walk:
    """Goes through the steps of one process, from a position on."""

    def __init__(self, phases: Phases, begin: Position, most_samples: int) -> None:
        """Stand at a position; so many samples of this rank are looked up in one go at most."""
        self.sample, self.step = begin.sample, begin.step
        self._phases = phases
        self._most_samples = most_samples
        self._turns = 0
        """Steps in which turns of the workers ended early: the next turn begins with another worker."""

    def ahead(self) -> tuple[Phase, Ranks, int]:
        """Return what the next steps are like, how they are divided, and how many this process may look up."""
        while True:
            phase, ranks, left = self._now()
            steps = max(self._most_samples // ranks.batch_size, 1)
            if left is None or left >= ranks.workers:
                return phase, ranks, steps if left is None else min(steps, left // ranks.workers)
            if ranks.worker < left:
                return phase, ranks, 1
            self._go(left, ranks, ends=True)  # the phase ends with steps of other workers

    def found(self, chunk: Chunk) -> "Found":
        """Return the next steps of this process, which a chunk has."""
        phase, ranks, _ = self._now()
        return Found(chunk, phase, self.step + ranks.worker, ranks.workers)

    def made(self, steps: int) -> None:
        """Go on behind so many steps of this process, and the steps of the other workers between them."""
        _, ranks, left = self._now()
        ends = left is not None and left < steps * ranks.workers
        self._go(left if ends and left is not None else steps * ranks.workers, ranks, ends=ends)

    def _now(self) -> tuple[Phase, Ranks, int | None]:
        phase = self._phases.at(self.step)
        ranks = phase.ranks
        ranks = replace(ranks, worker=(ranks.worker - self._turns) % ranks.workers) if self._turns else ranks
        return phase, ranks, self._phases.steps_left(self.step)

    def _go(self, steps: int, ranks: Ranks, *, ends: bool) -> None:
        self.step += steps
        self.sample += steps * ranks.global_batch
        self._turns += steps if ends else 0


class Found(NamedTuple):
    """Where the samples of steps are that are made alike."""

    chunk: Chunk
    phase: Phase
    first_step: int
    workers: int
    """How far the numbers of steps are apart."""

    def copies(self) -> "Iterator[Copy]":
        """Yield the copies of all rows, holding none while the next is made; raises DamagedError."""
        damaged_row = DamagedRowError  # this may be ended with the interpreter, whose modules have no names any more
        stretches = self.chunk.stretches()
        if self.phase.split > 1:
            self.chunk.split = self.phase.split
            stretches = map(split_rows, stretches, repeat(self.phase.split))
        try:
            yield from map(Copy, stretches, count(0, self.chunk.together), repeat(self))
        except damaged_row as damaged:
            self.chunk.refuse(damaged.at)


class Copy(NamedTuple):
    """Consecutive batches, copied."""

    stretch: Rows
    start: int
    """Which of the chunk's samples is the first one."""
    found: Found


def copies_of(looks: Iterator[Found | None]) -> Iterator[Copy | None]:
    """Yield the copies of what is found, look by look; None where nothing is there yet."""
    for found in looks:
        if found is None:
            yield None
        else:
            yield from found.copies()


class Stagings:
    """The ways of rows to a device: one for each number of rows that samples are divided into."""

    def __init__(
        self,
        phases: Phases,
        dtype: "np.dtype[np.unsignedinteger]",
        device: torch.device,
        *,
        widen: bool,
        slots: int,
        complete: Callable[[Batch], None] | None = None,
    ) -> None:
        """Open the way of the first steps; others follow. ``complete`` is called on the way, before a batch is used."""
        self._phases = phases
        self._complete = complete
        self._open = partial(open_staging, dtype=dtype, device=device, widen=widen, slots=slots)
        self.copy_thread: CopyThread[Copy, Batch] = CopyThread()
        self._found: dict[int, Staging] = {}
        self.of(phases.at(0))

    def of(self, phase: Phase) -> Staging:
        """Return the way of a phase's rows."""
        if phase.split not in self._found:
            rows, columns = max(self._phases.batch_sizes) * phase.split, self._phases.length // phase.split + 1
            self._found[phase.split] = self._open(rows, columns)
        return self._found[phase.split]

    def batches(
        self, looks: Iterator[Found | None], leg: Any, step_seconds: Callable[[], float]
    ) -> Iterator[Batch | None]:
        """Yield the batches of what is found, sent on their way, as `CopyThread.batches`; None: nothing is there."""
        return self.copy_thread.batches(partial(self._send, repeat(leg)), copies_of(looks), step_seconds=step_seconds)

    def _send(self, legs: Iterator[Any], copy: Copy) -> Iterator[Batch]:
        chunk, phase, first_step, workers = copy.found
        steps = count(first_step + copy.start // max(chunk.batch_size, 1) * workers, workers)
        starts = count(copy.start, chunk.batch_size)
        staging = self.of(phase)
        made: Iterator[Batch] = map(Batch, staging.send(copy.stretch), steps, repeat(chunk), starts, legs)
        if chunk.kept is not None and chunk.batch_size:  # without those that are damaged as a whole
            made = filter(len, made)
        return made if self._complete is None else map(partial(self._completed, staging, self._complete), made)

    @staticmethod
    def _completed(staging: Staging, complete: Callable[[Batch], None], batch: Batch) -> Batch:
        staging.complete(batch._sent, partial(complete, batch))
        return batch

    @property
    def stalled_seconds(self) -> float:
        """How long a device's work waited because a batch was not there yet, as far as that is known."""
        return sum(staging.stalled_seconds for staging in self._found.values())


def split_rows(stretch: Rows, split: int) -> Rows:
    """Return batches of samples, ``[batches, samples, length + 1]``, with each as so many rows."""
    if split == 1:
        return stretch
    batches, samples, columns = stretch.shape
    length = (columns - 1) // split
    views = np.lib.stride_tricks.sliding_window_view(stretch, length + 1, axis=2)[:, :, ::length]
    return np.ascontiguousarray(views).reshape(batches, samples * split, length + 1)


def _at(points: Sequence[tuple[int, Any]], step: int) -> Any:
    return [value for first, value in points if first <= step][-1]
