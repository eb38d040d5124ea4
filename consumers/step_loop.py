"""What loops over one stream and over several have alike: iterating, counting, and saying where they stand.

Batch sizes and sequence lengths may change with the steps. Samples have the greatest length of all, so which comes when
does not depend on lengths. A step of a smaller one has each sample as several rows, views that overlap by a token: the
same tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, repeat
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
import torch

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples.sequence import Position, Ranks
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store.layout import Closing

from . import arguments
from .arguments import DataRank, ranks_of, schedule_of, shown, warn_of_workers, whole
from .batch import Batch, StateAfter
from .metrics import Behind, Metrics
from .sample_lookup import Chunk, Rows
from .text import HasTokenizer
from .transfer import CopyThread, End, Staging, begin_ahead, next_usable, open_staging
from .waiting import Awaited, ReachableStream, StoreWait


class Phase(NamedTuple):
    """Steps that are made alike."""

    first_step: int
    ranks: Ranks
    split: int
    """Rows of each sample."""


class Phases:
    """What the steps of a run are like, from step 0 on."""

    def __init__(self, batch_size: Any, sequence_length: Any, rank: Any, world_size: Any, worker: Any) -> None:
        """Take numbers, or schedules: pairs of a step and the number from there on. Raises InputError."""
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
        """Return the copies of all rows, none of which is held while the next is made; raises DamagedError."""
        stretches = self.chunk.stretches()
        if self.phase.split > 1:
            self.chunk.split = self.phase.split
            stretches = map(split_rows, stretches, repeat(self.phase.split))
        return map(Copy, stretches, count(0, self.chunk.together), repeat(self))


class Copy(NamedTuple):
    """Consecutive batches, copied."""

    stretch: Rows
    start: int
    """Which of the chunk's samples is the first one."""
    found: Found


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
        self, looks: Iterator[Found | None], state_after: StateAfter, step_seconds: Callable[[], float]
    ) -> Iterator[Batch | None]:
        """Yield the batches of what is found, sent on their way, as `CopyThread.batches`; None: nothing is there."""
        copies = chain.from_iterable((None,) if found is None else found.copies() for found in looks)
        return self.copy_thread.batches(partial(self._send, repeat(state_after)), copies, step_seconds=step_seconds)

    def _send(self, states: Iterator[StateAfter], copy: Copy) -> Iterator[Batch]:
        chunk, phase, first_step, workers = copy.found
        steps = count(first_step + copy.start // max(chunk.batch_size, 1) * workers, workers)
        starts = count(copy.start, chunk.batch_size)
        staging = self.of(phase)
        made: Iterator[Batch] = map(Batch, staging.send(copy.stretch), steps, repeat(chunk), starts, states)
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
    batches, samples, columns = stretch.shape
    length = (columns - 1) // split
    views = np.lib.stride_tricks.sliding_window_view(stretch, length + 1, axis=2)[:, :, ::length]
    return np.ascontiguousarray(views).reshape(batches, samples * split, length + 1)


def _at(points: Sequence[tuple[int, Any]], step: int) -> Any:
    return [value for first, value in points if first <= step][-1]


@dataclass(frozen=True, slots=True)
class Delivery:
    """How batches come to a loop, whatever streams they are of."""

    phases: Phases
    stagings: Stagings
    store_wait: StoreWait
    stop: Callable[[], bool] | None
    prefetch: int
    """Batches that are on their way to a device ahead of the one that is delivered; 0: none."""
    row_bytes: int
    """Of a sample, as it is stored."""
    finish: Callable[[Batch], Any] | None
    """Returns what the loop is given for a batch; None: the batch."""
    skips: bool


class StepLoop(HasTokenizer, Closing, ABC):
    """An iterable over the steps of a run, for one rank, that can say where it stands and go on there."""

    _dataset: ClassVar = "StepDataset"
    """What gives the same steps to a DataLoader."""

    def __init__(self, delivery: Delivery, reachable: ReachableStream, begin: Position) -> None:
        """Stand at the beginning, a position in the run's own sequence."""
        self._delivery = delivery
        self._phases = delivery.phases
        self._ranks = delivery.phases.first
        self._stop, self._prefetch = delivery.stop, delivery.prefetch
        self._reachable = reachable
        self._begin = self._position = self._phases.plan(begin)
        self._lengths = self._phases.lengths
        self._made = 0
        """Steps delivered since ``_position``."""
        self._turn = 0
        """Counts what makes running iterations invalid."""
        self._closed = False
        self._most_samples = min((32 << 20) // delivery.row_bytes, 16_384)
        """Looked up in one go: 1024 batches of 16 x 1024 share the cost of that, and those of small ones come soon."""
        self._delivered = self._sampled = self._missing = 0  # the last: damaged samples that batches lack
        self._waited = self._worked = 0.0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps of the whole run, those that were made included, where its end is known.

        Raises TypeError where the end is not known; as Python and torch expect it of what has no length.
        """

    def __getitem__(self, index: object) -> NoReturn:  # what DataLoader asks of all that is no IterableDataset
        raise TypeError(
            f"{type(self).__name__} is no dataset for a DataLoader, whose workers would all read the same: loop over "
            f"it directly, or give the DataLoader a {self._dataset} of the same arguments, with batch_size=None"
        )

    def __bool__(self) -> bool:
        return True  # else Python would ask for the length

    def __getstate__(self) -> NoReturn:  # what copy does, and a DataLoader's workers that are not forked
        raise TypeError(
            f"{type(self).__name__} has files and threads of its own, and is neither copied nor pickled: open it again "
            f"with the same arguments, and load its state_dict(); or give a DataLoader a {self._dataset} of the same "
            "arguments, with batch_size=None"
        )

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from here on.

        Raises:
            StoreError: no batch came within ``timeout`` seconds, or the store is not there any more.
            DiskError: a file may not be read, or its disk fails.
            InputError: the store does not hold the samples any more, the state is behind the sequence's end or is one
                over other content, or the whole sequence has too few samples for one step; or `load_state_dict`,
                `rewind` or another iteration came between.
            DifferenceError: the store holds other blocks than its eras speak of.
            DamagedError: a file is damaged or cut off (with ``check``: a block, before its batch is delivered).
        """
        self._require_open()
        if self._ranks.workers == 1:
            warn_of_workers(type(self).__name__, f"give it a {self._dataset} of the same arguments")
        self._settle()
        delivery, reachable = self._delivery, self._reachable
        turn, before, skips = self._turn, self._position.step - 1, delivery.skips
        stop, staging, store_wait = self._stop, delivery.stagings.of(self._phases.at(0)), delivery.store_wait
        source = begin_ahead(self._produce(), self._prefetch) if self._prefetch else self._produce()
        waits, clock, end, carries, finish = True, perf_counter, End.END, staging.carries, delivery.finish
        is_inference = torch.is_inference_mode_enabled  # to call another function costs as much as a small row
        asked = clock()
        while stop is None or not stop():
            try:  # a context would cost a tenth of a small batch
                made = next_usable(source, end) if is_inference() else next(source, end)
            except (OSError, DamagedError):
                with reachable:
                    raise
            if made is end:
                return
            if made is None:
                waits = True
                reachable.require()
                store_wait.wait(self._awaited)
                began, asked = asked, clock()
                self._waited += asked - began
                continue
            if waits:
                waits = False
                store_wait.end()
            if carries:
                staging.deliver(made._sent)
            chunk: Any = made._chunk
            missing = chunk.batch_size - len(made) // chunk.split if skips else 0
            if finish is not None:
                made = finish(made)
            self._sampled += chunk.batch_size
            self._missing += missing
            self._made = made.step - before
            self._delivered += 1
            given = clock()
            self._waited += given - asked
            yield made
            del made  # its memory can be the next one's, here or on a device
            asked = clock()
            self._worked += asked - given
            if turn != self._turn:
                raise InputError("these Batches were set to another place meanwhile: begin a new iteration there")

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that were delivered: small, JSON, equal on every rank.

        Raises DamagedError where the eras are damaged, and the run, just set to this place, has not read them.
        """
        return self._states()(self.step - 1)

    def state_after(self, step: int) -> dict[str, Any]:
        """Return where the run stands once all steps up to this one, and no later one, were trained on.

        For loops that know the number of the step that they are through with: ``batch.state`` by arithmetic, of any
        step of the run. Raises InputError where it is no number of a step, or one behind the run's end.
        """
        step = arguments.whole("step", step, 0, "steps")
        with suppress(TypeError):  # its end is not known
            if step >= (steps := len(self)):
                raise InputError(f"step is {step}, but the last one of this run is {steps - 1}: give a number up to it")
        return self._states()(step)

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved, by any rank of a run with any number of ranks and any batch size."""

    def close(self) -> None:
        """Let go of files and threads, as the end of a ``with`` block does; what was given stays as it is."""
        self._settle()
        self._delivery.stagings.copy_thread.end()
        self._release()
        self._closed = True

    def _require_open(self) -> None:
        self._phases.data_rank.require()
        if self._closed:
            raise InputError(f"this {type(self).__name__} was closed: open it again, and load its state_dict()")

    @abstractmethod
    def _release(self) -> None:
        """Let go of what is open."""

    def rewind(self) -> Self:
        """Go back to the beginning of the sequence, as for each validation."""
        self._settle()
        self._lengths = self._phases.lengths
        self._position = self._begin
        return self

    def skip(self, steps: int) -> Self:
        """Go on so many steps later (of each worker's), unread; raises InputError where it is no number of steps."""
        steps = arguments.whole("steps", steps, 0, "steps")
        self._settle()
        self._made = steps * self._ranks.workers
        self._settle()
        return self

    @property
    def step(self) -> int:
        """The number of the next step, counted from the beginning of the sequence."""
        return self._position.after(self._made).step

    @property
    def stream(self) -> str:
        """The name of the stream; of several, with plus signs."""
        return self._begin.sequence.stream

    @property
    def metrics(self) -> Metrics:
        """What was delivered up to now, and how long the loop waited for it."""
        samples, delivery = self._sampled - self._missing, self._delivery
        tokens = samples * self._position.sequence.sequence_length
        return Metrics(
            *(self._delivered, samples, tokens, samples * delivery.row_bytes),
            work_seconds=self._worked,
            wait_seconds=self._waited,
            store_wait_seconds=delivery.store_wait.waited_seconds,
            device_wait_seconds=delivery.stagings.stalled_seconds,
        )

    def behind(self) -> Behind:
        """Return how much there is in the stores beyond the next step; costs a small read, in any thread.

        Raises StoreError where a store is not there any more, DamagedError where the files of the eras are damaged.
        """
        with self._reachable:
            found = [trainable.content.behind(sample) for trainable, sample in self._reads()]
        return Behind(*map(sum, zip(*found, strict=True)))

    @property
    def skipped(self) -> int:
        """Number of damaged blocks that this rank left out so far."""
        readers = [reader for trainable, _ in self._reads() for reader in list(trainable.readers.values())]
        return sum(len(reader.skipped) for reader in readers)

    @abstractmethod
    def _reads(self) -> list[tuple[TrainableSamples, int]]:
        """Return what is read, and how many samples of each were delivered."""

    @abstractmethod
    def _with_content(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return an earlier state of the same run that names the content that was used up to now."""

    @abstractmethod
    def _states(self) -> StateAfter:
        """Return what counts from where a state was loaded last, or from the beginning."""

    @abstractmethod
    def _looks(self) -> Iterator[Found | None]:
        """Yield where the samples of the next steps are, hundreds of steps at a time; None: they are not there yet.

        May be asked in another thread than the loop's, while the loop does nothing but work on what it was given.
        """

    @abstractmethod
    def _awaited(self) -> Awaited:
        """Say what is missing where the last look found nothing, and what to do."""

    def _end(self) -> int | None:
        """Return how many samples there are, where a last step takes what is left; None: none does, or as yet."""
        return None

    def _walk(self) -> Walk:
        return Walk(self._phases, self._position, self._most_samples)

    def _settle(self) -> None:
        """Stand where the last delivered batch ended; what was read ahead is forgotten."""
        self._delivery.stagings.copy_thread.settle()
        self._turn += 1
        self._position = self._position.after(self._made).up_to(self._end())
        self._made = 0

    def _produce(self) -> Iterator[Batch | None]:
        return self._delivery.stagings.batches(
            self._looks(), self._states(), lambda: self._worked / max(self._delivered, 1)
        )

    def _go_on(self, saved: Position, lengths: Any) -> None:
        self._settle()
        self._lengths = self._phases.merged(lengths, saved.step)
        self._position = self._phases.plan(saved)

    def _told_lengths(self) -> dict[str, Any]:
        """Return what a state says of lengths that change."""
        return {"lengths": [list(point) for point in self._lengths]} if len(self._lengths) > 1 else {}
