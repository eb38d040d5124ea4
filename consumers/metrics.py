"""What a training loop got, how long it waited for it, and how far it is behind its store."""

from dataclasses import astuple, dataclass
from threading import Lock
from typing import NamedTuple, Self

from tokenmill.samples import EraPlaces, SequenceId
from tokenmill.store import EraReader

from . import arguments


@dataclass(slots=True)
class Metrics:
    """Sums over the batches that this process was given, times in seconds; `since` gives those of a part of the run."""

    batches: int = 0
    samples: int = 0
    """In them; without those that are damaged and left out."""
    tokens: int = 0
    """Of x: ``sequence_length`` for each sample."""
    bytes: int = 0
    """Of tokens, as they are stored and travel to a device: ``sequence_length + 1`` for each sample."""
    work_seconds: float = 0.0
    """From getting a batch to asking for the next one."""
    wait_seconds: float = 0.0
    """From asking for a batch to getting it: reading, copying, and waiting for the store. What a device does meanwhile
    is not known, so with one this is the most that the loop can have lost."""
    store_wait_seconds: float = 0.0
    """The part of it in which no whole step was trainable yet."""
    device_wait_seconds: float = 0.0
    """How long the work on a CUDA device waited because a batch was still on its way, as its events show later."""

    @property
    def wait_ratio(self) -> float:
        """The part of its time that the loop, or its device, waited for data: near 0, the model is the bottleneck."""
        seconds = self.work_seconds + self.wait_seconds
        return max(self.wait_seconds, self.device_wait_seconds) / seconds if seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of x in a second of the loop's time: of work and waiting together; 0 before the first batch."""
        seconds = self.work_seconds + self.wait_seconds
        return self.tokens / seconds if seconds else 0.0

    def since(self, earlier: "Metrics") -> Self:
        """Return what came after an earlier state of these; raises InputError where ``earlier`` is something else."""
        arguments.instance_of("earlier", earlier, Metrics)
        return type(self)(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


class Behind(NamedTuple):
    """What the store has for a run beyond where that stands, in the pass that it is in."""

    blocks: int
    """Of the eras in the store, those that it has not wholly read."""
    eras: int
    """The eras that these are in."""


class Used(NamedTuple):
    """The era of a sample that a run has taken."""

    passed: int
    """How many passes were complete before."""
    closed: int
    """When it was closed, in milliseconds since 1970."""


class Head:
    """How far the eras in a store reach. May be asked by any thread: it shares nothing with those that read."""

    def __init__(self, eras: EraReader, sequence: SequenceId, views: int) -> None:
        """Look at eras that nobody else uses, for samples of which each block has so many."""
        self._eras = eras
        self._sequence = sequence
        self._views = views
        self._lock = Lock()
        self._places = EraPlaces(eras, sequence, views)

    def total(self) -> int | None:
        """Return how many samples the sequence has; None until its last era is in the store.

        Raises:
            DamagedError: the files of the eras are damaged.

        """
        with self._lock:
            found = self._places.total()
            if found is None and self._eras.refresh():
                found = self._places.total()
            return found

    def used(self, sample: int) -> Used | None:
        """Return what is known of the era of a sample; None where no era in the store has it.

        Raises:
            DamagedError: the files of the eras are damaged.

        """
        with self._lock:
            self._eras.refresh()
            place = self._places.place(sample)
            return None if place is None else Used(place.passed, self._eras.era(place.era).closed)

    def behind(self, sample: int) -> Behind:
        """Return what the store has now beyond the sample that comes next.

        Raises:
            DamagedError: the files of the eras are damaged.

        """
        with self._lock:
            eras = self._eras
            eras.refresh()
            first, stop = self._sequence.eras
            known = eras.eras - eras.ended
            stop = known if stop is None else min(stop, known)
            if stop <= first:
                return Behind(0, 0)
            begin, end = eras.blocks_before(first), eras.blocks_before(stop)
            whole = (end - begin) * self._views
            passed = min(sample // whole, self._sequence.passes - 1)
            block = begin + (sample - passed * whole) // self._views
            return Behind(end - block, stop - eras.find(block)) if block < end else Behind(0, 0)
