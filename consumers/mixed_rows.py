"""The tokens of a mixture's next steps: each sample from the stream that the course gives it to, in one gathering."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tokenmill.samples.mixing import Course
from tokenmill.samples.sequence import Numbers, Ranks
from tokenmill.store import MapWatch

from .sample_lookup import Chunk, LocatedRows, RowReader, StreamSamples
from .transfer import End

_FEW_PLACES: Final = 1 << 16
"""How far an end is looked for at a time."""


class Missing(NamedTuple):
    """What the next step waits for."""

    stream: str
    sample: int


class MixturePlace(NamedTuple):
    """Where a mixture stands: what its places count, and the samples that each stream has given."""

    course: Course
    samples: dict[str, int]


class MixedReader:
    """Finds the rows of a rank's next steps in a mixture."""

    def __init__(self, ranks: Ranks, *, whole_steps: bool) -> None:
        """Read for a rank; with ``whole_steps``, all samples of a step are of one stream."""
        self.parts: dict[str, RowReader] = {}
        self.leaving: set[str] = set()
        """Streams that leave the mixture behind their last sample; else it ends when it wants one more."""
        self.missing: Missing | None = None
        self.ranks = ranks
        """Those of the steps that are read next."""
        self.rotates = not whole_steps
        """Whether samples are rotated among the ranks, lest one get one stream alone where patterns meet slices."""
        self.whole_steps = whole_steps
        self._watch = MapWatch()
        self._most_samples = 256  # so that the first batch comes soon; then four times as many each time

    def read(self, place: MixturePlace, step: int, steps: int) -> Chunk | End | None:
        """Return the next steps of this process, ``steps`` at most, at first fewer; None: something may still come.

        Raises as `RowReader.read`.
        """
        ranks = self.ranks
        steps = min(steps, max(self._most_samples // ranks.batch_size, 1))
        trial = place.course.copy().go_to(place.course.place + self._places(steps * ranks.workers))
        steps = min(steps, self._ready(place, trial))
        if not steps:
            return End.END if self.missing is None else None
        self._most_samples *= 4
        return self._chunk(place, step, steps)

    def advance(self, place: MixturePlace, steps: int, samples: int) -> MixturePlace:
        """Return the place so many steps, with so many samples of all ranks, later."""
        course = place.course.copy()
        before = course.given
        course.go_to(course.place + (steps if self.whole_steps else samples))
        found = dict(place.samples)
        for name, taken in course.given.items():
            found[name] = found.get(name, 0) + (taken - before.get(name, 0)) * self._unit
        return MixturePlace(course, found)

    def limit(self, name: str, taken: int, samples: int) -> int | None:
        """Return at how many places a stream leaves that has been taken at so many, with so many samples."""
        total = self._total(name) if name in self.leaving else None
        if total is None:
            return None
        return taken + (total - samples) // self.ranks.global_batch if self.whole_steps else total

    def places_to_end(self, place: MixturePlace) -> int | None:
        """Return how many places come from one on; None where that is not known: a stream's end is not there."""
        if any(self._total(name) is None for name in self.parts):
            return None
        first = place.course.place
        while True:
            later = self.advance(place, _FEW_PLACES, _FEW_PLACES)
            if later.course.ended or any(given > (self._total(name) or 0) for name, given in later.samples.items()):
                break
            place = later
        course = place.course.copy()
        streams, numbers = course.draw(np.arange(place.course.place, later.course.place), later.course.place)
        there = len(streams)
        for index, name in enumerate(course.schedule.names):
            mine = np.flatnonzero(streams == index)
            begun = place.course.given.get(name, 0)
            samples = place.samples.get(name, 0) + (numbers[mine] - begun + 1) * self._unit
            over = mine[samples > (self._total(name) or 0)]
            there = min([there, *over[:1].tolist()])
        return place.course.place - first + there

    def _total(self, name: str) -> int | None:
        return self.parts[name].trainable.content.total()

    @property
    def _unit(self) -> int:
        """Samples of all ranks at a place."""
        return self.ranks.global_batch if self.whole_steps else 1

    def _places(self, steps: int) -> int:
        return steps if self.whole_steps else steps * self.ranks.global_batch

    def _steps_in(self, places: int) -> int:
        return self.ranks.steps_in(places * self._unit)

    def _available(self, place: MixturePlace, trial: Course, name: str, index: int) -> tuple[int, int]:
        """Return how many places of a stream are wanted up to where a trial went, and how many can be had."""
        part = self.parts[name]
        wanted = trial.taken[index] - place.course.given.get(name, 0)
        if not wanted:
            return 0, 0
        samples = wanted * self._unit
        held = name in self.leaving and self._total(name) is None  # its last sample is given when it is known for one
        part.reach(place.samples.get(name, 0), samples + held)
        ready = part.trainable.ready(place.samples.get(name, 0), samples + held, self.ranks.turn + held)
        return wanted, min(ready - held if ready else 0, samples) // self._unit

    def _ready(self, place: MixturePlace, trial: Course) -> int:
        """Return how many steps of this process are complete; note what comes next and is missing."""
        self.missing = None
        named = list(enumerate(trial.schedule.names))
        found = {index: self._available(place, trial, name, index) for index, name in named}
        if all(there == wanted for wanted, there in found.values()):
            return self._steps_in(trial.place - place.course.place)
        first = place.course.place
        streams, _ = place.course.copy().draw(np.arange(first, trial.place), trial.place)
        reached, missing = trial.place - first, None
        for index, name in named:
            wanted, there = found[index]
            if there < wanted:
                at = int(np.flatnonzero(streams == index)[there])
                if at < reached:
                    reached, missing = at, Missing(name, place.samples.get(name, 0) + there * self._unit)
        if missing is not None:
            total = self._total(missing.stream)
            if total is not None and total < missing.sample + self._unit:
                missing = None  # the stream is at its end, and so is the mixture
        self.missing = missing
        return self._steps_in(reached)

    def _chunk(self, place: MixturePlace, step: int, steps: int) -> Chunk:
        ranks, course = self.ranks, place.course
        before = course.given
        drawn = course.copy()
        stop = course.place + self._places(steps * ranks.workers)
        if self.whole_steps:
            turns = course.place + ranks.worker + ranks.workers * np.arange(steps)
            order = np.arange(steps)
            streams, numbers = drawn.draw(turns, stop)
            inside = ranks.rank * ranks.batch_size + np.arange(ranks.batch_size)
        else:
            asked = ranks.samples(course.place, steps, step if self.rotates else None)
            order = np.argsort(asked, kind="stable")
            streams, numbers = drawn.draw(asked[order], stop)
            inside = np.zeros(1, np.int64)
        names = drawn.schedule.names
        rows, found = [], []
        whole = np.flatnonzero(np.bincount(streams, minlength=len(names)))
        for index in whole.tolist():
            name = names[index]
            given = np.flatnonzero(streams == index) if len(whole) > 1 else np.arange(len(streams))
            wanted = (numbers[given] - before.get(name, 0)) * self._unit + place.samples.get(name, 0)
            mine = order[given]
            if self.whole_steps:
                wanted = (wanted[:, None] + inside).reshape(-1)
                mine = (mine[:, None] * ranks.batch_size + np.arange(ranks.batch_size)).reshape(-1)
            part = self.parts[name]
            rows.append(StreamSamples(name, part.trainable, part.options, mine, part.trainable.items(wanted)))
            found.append((mine, part.locate(rows[-1].items)))
        located = _joined(found, steps * ranks.batch_size)
        return Chunk(rows, located, part.columns, self._watch, steps=steps, batch_size=ranks.batch_size)


def _joined(parts: Sequence[tuple[Numbers, LocatedRows]], size: int) -> LocatedRows:
    if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(size)):
        return parts[0][1]
    addresses = np.empty(size, np.int64)
    first = parts[0][1]
    kept = None if first.kept is None else np.empty(size, np.bool_)
    crcs = None if first.crcs is None else np.empty(size, np.uint32)
    maps = []
    for mine, found in parts:
        addresses[mine] = found.addresses
        maps += found.maps
        if kept is not None and found.kept is not None:
            kept[mine] = found.kept
        if crcs is not None and found.crcs is not None:
            crcs[mine] = found.crcs
    return LocatedRows(addresses, maps, kept=kept, crcs=crcs)
