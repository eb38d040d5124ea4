"""Where a mixture stands: its state, what it was to give and gave, and where it began."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from tokenmill.canonical import canonical_json
from tokenmill.errors import InputError
from tokenmill.samples import Course, Position, Schedule, SequenceId, StepRange, TrainableSamples, UsedContent
from tokenmill.wire.pieces import PADDING

from .batches import Batches
from .mixed_rows import MixedReader, MixturePart, MixturePlace
from .mixture_arguments import Mixing

_FORMAT: Final = 1
_MEASURED_BLOCKS: Final = 1024
"""Blocks of a stream's first era whose padding is counted, spread over it evenly."""


class StreamShare(NamedTuple):
    """What a stream of a mixture gave up to now, and of how new samples."""

    share: Fraction
    """Its part of the samples, as the weights say for the next one."""
    wanted: Fraction
    """How many samples it was to give, exactly; steps, where a mixture takes whole batches."""
    delivered: int
    """How many of these it gave."""
    samples: int
    """How many samples it gave."""
    passes: int
    """How often it was gone through as a whole."""
    left: bool
    """Whether it left the mixture at its end."""
    newest: int | None
    """When the era of its latest sample was closed, in milliseconds since 1970; None: it gave none."""


class Saved(NamedTuple):
    """What a state of a mixture says."""

    position: Position
    schedule: Schedule
    taken: dict[str, int]
    positions: dict[str, Position]
    rotates: bool


@dataclass(slots=True, eq=False)
class MixtureLeg:
    """A part of a run over a mixture: from where it began, or its weights were set, up to the next such place."""

    begin: Position
    place: MixturePlace
    reader: MixedReader
    contents: Mapping[str, UsedContent]
    positions: Mapping[str, Position]
    """Of each stream, in its own sequence; as it was loaded."""
    told: dict[str, Any]
    """What a state says of the mixture as a whole."""
    _last: tuple[int, MixturePlace] | None = None

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the state of the run once all steps up to this one were trained on.

        Raises:
            DamagedError: the eras are damaged, and the run has not read them yet.

        """
        place = self._place_at(step + 1)
        schedule = place.course.schedule
        taken = dict(zip(schedule.names, place.course.taken, strict=True))
        position = self.begin.before(step + 1).to_dict()
        streams = []
        for name, begun in self.positions.items():
            at = replace(begun, sample=place.samples.get(name, 0))
            pinned = self.contents[name].pin(at if at.sample else replace(at, content=None)).to_dict()
            streams.append({"name": name, "taken": taken.get(name, 0), **pinned})
        return {
            "format": _FORMAT,
            **self.told,
            "sample": position["sample"],
            "ranges": position["ranges"],
            "schedule": [schedule.to_dict()],  # in lists, for DCP would split what is in dictionaries into entries
            "streams": streams,
        }

    def _place_at(self, step: int) -> MixturePlace:
        """Return the place before a step; what follows the one that was asked for last costs what is between."""
        number, place = self._last or (self.begin.step, self.place)
        if step < number:
            number, place = self.begin.step, self.place
        if step < number:
            return self._earlier(step)
        samples = self.begin.before(step).sample - self.begin.before(number).sample
        place = self.reader.advance(place, step - number, samples)
        self._last = (step, place)
        return place

    def _earlier(self, step: int) -> MixturePlace:
        """Return the place before a step that was made before this leg began."""
        position = self.begin.before(step)
        whole_steps = self.reader.whole_steps
        at = position.step if whole_steps else position.sample
        schedule = self.place.course.schedule.before(at)
        if not whole_steps:
            course = _course_at(schedule, at)
            return MixturePlace(course, dict(zip(schedule.names, course.taken, strict=True)))
        samples = dict.fromkeys(schedule.names, 0)
        parts = [part for part in position.ranges if part.first_step < at]
        for part, stop in zip(parts, [*(part.first_step for part in parts[1:]), at], strict=True):
            begun, ended = (
                dict(zip(course.schedule.names, course.taken, strict=True))
                for course in (_course_at(schedule.before(edge), edge) for edge in (part.first_step, stop))
            )
            for name, taken in ended.items():
                samples[name] += (taken - begun.get(name, 0)) * part.global_batch
        return MixturePlace(_course_at(schedule, at), samples)


def _course_at(schedule: Schedule, place: int) -> Course:
    known, taken = schedule.base(place)
    return Course(schedule, known, taken).go_to(place)


def beginning_of(streams: Mapping[str, Batches], global_batch: int) -> Position:
    """Return the first position of a mixture; its sequence names all streams, by a hash."""
    opened = {name: batches._opened.sequence for name, batches in streams.items()}
    identity = canonical_json({name: [one.stream, one.fingerprint, one.seed] for name, one in opened.items()})
    length = next(iter(opened.values())).sequence_length
    name, fingerprint = "+".join(opened), xxhash.xxh3_128_hexdigest(identity)
    sequence = SequenceId(name, fingerprint, length, seed=0, shuffle=False, eras=(0, None), passes=1)
    return Position.beginning(sequence, global_batch)


def read_mixture(state: Mapping[str, Any], begin: Position, streams: Mapping[str, Batches], mixing: Mixing) -> Saved:
    """Return what a state says, if it is one of this mixture; streams that have no weight in it may be missing there.

    Raises:
        InputError: it is no state, or one of another mixture.

    """
    try:
        if state["format"] != _FORMAT:
            raise InputError(f"the state's format is {state['format']!r}: use the version of tokenmill that wrote it")
        (schedule,) = map(Schedule.read, state["schedule"])
        ranges = tuple(StepRange(*part) for part in state["ranges"])
        position = replace(begin, sample=state["sample"], ranges=ranges)
        position.require_sound()
        named = {one["name"]: one for one in state["streams"]}
        taken = {name: one["taken"] for name, one in named.items()}
        rotates = bool(state["settings"][0].get("rotate"))
        told = mixing.told(rotates=rotates)
        found = {name: state[name] for name in told}
        _require_counts(taken, schedule)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"this is no state of a Mixture ({error!r}): give what state_dict() returned") from error
    missing = sorted({*schedule.names} - {*streams})
    if missing:
        raise InputError(
            f"the state is of a mixture with the stream {missing[0]!r}, which is not given: give it to Mixture among "
            "the streams; its weight is in the state"
        )
    for name, value in told.items():
        if found[name] != value:
            raise InputError(
                f"the state is of another mixture or schedule: its {name} is {found[name]!r} (here {value!r}). Open "
                "the Mixture as it was when the state was saved, and set other weights then (set_weights)"
            )
    positions = {}
    for name, batches in streams.items():
        sequence = batches._opened.sequence
        if name in named:
            try:
                positions[name] = Position.from_dict(named[name], sequence)
            except InputError as error:
                raise InputError(f"stream {name!r}: {error}") from error
        else:
            positions[name] = Position.beginning(sequence, 1)
    return Saved(position, schedule, taken, positions, rotates)


def shares_of(place: MixturePlace, parts: Mapping[str, MixturePart], whole_steps: bool) -> dict[str, StreamShare]:  # noqa: FBT001
    """Return what each stream gave up to a place."""
    course = place.course
    schedule, plan = course.schedule, course.schedule.plan
    taken = dict(zip(schedule.names, course.taken, strict=True))
    wanted = dict(zip(schedule.names, plan.wanted(course.place), strict=True))
    weights = dict(zip(schedule.names, plan.pieces[plan.piece_at(course.place)].weights, strict=True))
    found = {}
    for name, part in parts.items():
        samples = place.samples.get(name, 0) if whole_steps else taken.get(name, 0)
        used = part.head.used(samples - 1)
        gone = name in schedule.left and schedule.left[name] <= course.place
        found[name] = StreamShare(
            share=Fraction(0) if gone or course.ended else weights.get(name, Fraction(0)),
            wanted=wanted.get(name, Fraction(0)),
            delivered=taken.get(name, 0),
            samples=samples,
            passes=0 if used is None else used.passed + (samples == part.head.total()),
            left=gone,
            newest=None if used is None else used.closed,
        )
    return found


def fill_of(trainable: TrainableSamples, name: str) -> Fraction:
    """Return the part of the tokens of a stream's first era that are no padding, of some of its blocks.

    Raises:
        InputError: that era is not in the store yet.
        DamagedError: its document tables are damaged.

    """
    if not trainable.ready(0, 1):
        raise InputError(
            f"by='tokens' looks at the padding of the first era of {name!r}, which is not in {trainable.store} yet: "
            "wait for it, or count samples"
        )
    size = trainable.samples_of_first()
    chosen = np.unique(np.linspace(0, size - 1, _MEASURED_BLOCKS).astype(np.int64))
    samples = trainable.locate(chosen)
    tokens = padded = 0
    for partition, block in sorted({*zip(samples.partitions.tolist(), samples.blocks.tolist(), strict=True)}):
        reader = trainable.reader(partition)
        pieces = reader.pieces(block)
        stops = np.append(pieces["start"][1:], reader.block_tokens)
        tokens += reader.block_tokens
        padded += int((stops - pieces["start"])[pieces["position"] == PADDING].sum())
    return Fraction(max(tokens - padded, 1), tokens)


def _require_counts(taken: Mapping[str, Any], schedule: Schedule) -> None:
    """Raise ValueError where it is not said of each stream how much it gave."""
    if not {*schedule.names} <= {*taken} or not all(type(count) is int and count >= 0 for count in taken.values()):
        raise ValueError("counts are missing")
