"""What loops over one stream and over several have alike: iterating, counting, and saying where they stand."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, NoReturn, Protocol, Self

import torch

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples.sequence import Position
from tokenmill.store.layout import Closing

from . import arguments
from .batch import Batch
from .metrics import Behind, Metrics
from .step_schedule import Found, Phases, Stagings, Walk
from .text import HasTokenizer
from .transfer import End, begin_ahead, next_usable
from .waiting import Awaited, ReachableStream, StoreWait


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


class RunLeg(Protocol):
    """A part of a run, from a place where it began to the next such place."""

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the state of the run once all steps up to this one were trained on."""


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
        """From which step on rows had which length."""
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
            f"it directly, or give the DataLoader a {self._dataset} of the same "
            "arguments, with batch_size=None"
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
        return self._leg().state_after(self.step - 1)

    def state_after(self, step: int) -> dict[str, Any]:
        """Return where the run stands once all steps up to this one, and no later one, were trained on.

        For loops that know the number of the step that they are through with: ``batch.state`` by arithmetic, of any
        step of the run. Raises InputError where it is no number of a step, or one behind the run's end.
        """
        step = arguments.whole("step", step, 0, "steps")
        with suppress(TypeError):  # its end is not known
            if step >= (steps := len(self)):
                raise InputError(f"step is {step}, but the last one of this run is {steps - 1}: give a number up to it")
        return self._leg().state_after(step)

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
    @abstractmethod
    def stream(self) -> str:
        """The name of the stream."""

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

    @abstractmethod
    def behind(self) -> Behind:
        """Return how much there is in the store beyond the next step; costs a small read, in any thread.

        Raises StoreError where the store is not there any more, DamagedError where the files of the eras are damaged.
        """

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Number of damaged blocks that this rank left out so far."""

    @abstractmethod
    def _with_content(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return an earlier state of the same run that names the content that was used up to now."""

    @abstractmethod
    def _leg(self) -> RunLeg:
        """Return the part of the run that began where a state was loaded last, or at the beginning."""

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
            self._looks(), self._leg(), lambda: self._worked / max(self._delivered, 1)
        )

    def _go_on(self, saved: Position, lengths: Any) -> None:
        self._settle()
        self._lengths = self._phases.merged(lengths, saved.step)
        self._position = self._phases.plan(saved)

    def _told_lengths(self) -> dict[str, Any]:
        """Return what a state says of lengths that change."""
        return {"lengths": [list(point) for point in self._lengths]} if len(self._lengths) > 1 else {}
