"""What a `Mixture` is made of, as it is given and as a state says it, and the tokens of its next steps.

Each sample is from the stream that the course gives it to; those of a step are copied in one gathering. Refusals say
what to give.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from tokenmill.errors import InputError
from tokenmill.recipe import canonical_json
from tokenmill.samples.mixing import Course, Point, Schedule
from tokenmill.samples.sequence import Numbers, Position, Ranks, SequenceId, StepRange
from tokenmill.samples.trainable import TrainableSamples, UsedContent
from tokenmill.store import MapWatch
from tokenmill.wire.pieces import PADDING

from .arguments import choice, flag, schedule_of, shown
from .batches import Batches
from .sample_lookup import Chunk, LocatedRows, RowReader, StreamSamples
from .transfer import End

_FEW_PLACES: Final = 1 << 16
"""How far an end is looked for at a time."""


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
        self.missing: tuple[str, int] | None = None
        """The stream, and its sample, for which the next step waits."""
        self.ranks = ranks
        """Those of the steps that are read next."""
        self.rotates = not whole_steps
        """Whether samples are rotated among the ranks, lest one get one stream alone where patterns meet slices."""
        self.whole_steps = whole_steps
        self._watch = MapWatch()
        self._most_samples = 256  # so that the first batch comes soon; then four times as many each time

    def read(self, place: MixturePlace, step: int, steps: int) -> Chunk | End | None:
        """Return the next steps, at first few; None: something may still come. Raises as `RowReader.read`."""
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
            return self.ranks.steps_in((trial.place - place.course.place) * self._unit)
        first = place.course.place
        streams, _ = place.course.copy().draw(np.arange(first, trial.place), trial.place)
        reached = trial.place - first
        for index, name in named:
            wanted, there = found[index]
            if there < wanted:
                at = int(np.flatnonzero(streams == index)[there])
                if at < reached:
                    sample, total = place.samples.get(name, 0) + there * self._unit, self._total(name)
                    ends = total is not None and total < sample + self._unit  # the stream, and so the mixture
                    reached, self.missing = at, None if ends else (name, sample)
        return self.ranks.steps_in(reached * self._unit)

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


MIXED: Final = ("linear", "unit", "at_end", "interleave", "by")
"""The arguments of `Mixture` that `Batches` does not have, except streams and weights."""
_DIGITS: Final = 40
"""Most digits of a weight's numerator and denominator: exact arithmetic on longer ones takes long."""
_FORMAT: Final = 1


class Mixing(NamedTuple):
    """How streams are mixed: with the streams, it decides the order."""

    points: tuple[Point, ...]
    linear: bool
    by_step: bool
    at_end: dict[str, str]
    whole_steps: bool
    """Whether all samples of a step are of one stream."""
    counts_tokens: bool
    """Whether weights are divided by what is no padding."""

    def told(self, *, rotates: bool) -> dict[str, Any]:
        """Return what a state says of it, and of whether rows are rotated: those of older versions are not."""
        settings = {
            "interleave": "batch" if self.whole_steps else "sample",
            "unit": "step" if self.by_step else "sample",
            "by": "tokens" if self.counts_tokens else "samples",
            "linear": self.linear,
            "leave": sorted(name for name, at_end in self.at_end.items() if at_end == "leave"),
        }
        settings |= {"rotate": True} if rotates else {}
        weights = [[start, {name: str(weight) for name, weight in held.items()}] for start, held in self.points]
        return {"mixture": weights, "settings": [settings]}


@contextmanager
def told(name: str, value: Any) -> Iterator[None]:
    """Let refusals of what is in a value say what the whole is."""
    try:
        yield
    except InputError as error:
        whole_value = f"{name} is {shown(value)}"
        raise error if str(error).startswith(whole_value) else InputError(f"{whole_value}: {error}") from error


def streams_of(value: Any) -> dict[str, Batches]:
    """Return streams by name, ascending; raises InputError where they are none."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"streams is {shown(value)}: give Batches by name, such as {{'web': Batches(…)}}")
    for name, batches in value.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a stream of the mixture is named {shown(name)}: give it a text as name")
        if type(batches) is not Batches:
            raise InputError(f"stream {name!r} is {shown(batches)}: give Batches of a stream of its own")
        if batches._position.sequence.in_order:
            raise InputError(f"stream {name!r} is read in order: give Batches without in_order")
        if batches._keeps_last:
            raise InputError(
                f"stream {name!r} has drop_last=False, and a mixture ends with a step: give Batches without"
            )
        if batches.step:
            raise InputError(
                f"stream {name!r} stands at step {batches.step}, and a mixture counts from the beginning of each: "
                "give it as it was opened, and load the state of the mixture"
            )
    if len({id(batches) for batches in value.values()}) < len(value):
        raise InputError("two streams of the mixture are the same Batches: open each of its own")
    return dict(sorted(value.items()))


def require_alike(streams: Mapping[str, Batches]) -> None:
    """Raise InputError where streams cannot be in one batch; says how to make them alike."""
    common = math.gcd(*(batches._info.block_tokens - 1 for batches in streams.values()))
    one_tokenizer, same_options = "mill them again with one tokenizer", "open all Batches with the same ones"
    advice = {
        "sequence_length": f"open all with one that divides the blocks of each, such as {common}",
        "tokenizer": f"{one_tokenizer}: ids of several mean different tokens",
        "vocabulary size": one_tokenizer,
        "end of document": "mill them again with one end_of_document",
        "dtype": f"{one_tokenizer}, whose vocabulary has one size",
        "batch_size, rank, world_size and worker": same_options,
        "options": same_options,
    }
    traits = {}
    for name, batches in streams.items():
        info = batches._info
        recipe, end = info.recipe, info.values.get("end_of_document")
        tokens = (recipe.get("tokenizer_sha256"), recipe.get("vocabulary_size"), end, info.dtype.name)
        own = (batches._position.sequence.sequence_length, *tokens, str(batches._ranks), batches._options)
        traits[name] = dict(zip(advice, own, strict=True))
    first, *others = traits
    for trait, other in itertools.product(advice, others):
        if traits[other][trait] != traits[first][trait]:
            raise InputError(
                f"the streams of a mixture have one {trait}, but {first!r} has {traits[first][trait]} and "
                f"{other!r} {traits[other][trait]}: give streams that agree; {advice[trait]}"
            )


def mixing_of(
    streams: Mapping[str, Batches], weights: Any, *, linear: Any, unit: Any, at_end: Any, interleave: Any, by: Any
) -> Mixing:
    """Return how streams are to be mixed; raises InputError where that cannot be."""
    whole_steps = choice("interleave", interleave, ("sample", "batch")) == "batch"
    counts_tokens = choice("by", by, ("samples", "tokens")) == "tokens"
    with told("at_end", at_end):
        ends = at_end_of(at_end, streams)
    default = "step" if whole_steps else "sample"
    by_step = choice("unit", default if unit is None else unit, ("sample", "step")) == "step"
    if whole_steps and not by_step:
        raise InputError("unit is 'sample', but with interleave='batch' weights count steps: give 'step', or none")
    with told("weights", weights):
        given = list(weights) if isinstance(weights, tuple) else weights
        schedule = schedule_of("weights", given, "place", "weights by name")
        points = tuple(Point(start, weights_of(held, streams)) for start, held in schedule)
    return Mixing(points, flag("linear", linear), by_step, ends, whole_steps, counts_tokens)


def weights_of(value: Any, streams: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return exact weights by name; raises InputError where one is none, or of no stream."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"weights is {shown(value)}: give a weight for each stream, such as {{'web': 0.7}}")
    for name in value:
        if name not in streams:
            raise InputError(
                f"weights names the stream {shown(name)}, which is not in the mixture: give one of {sorted(streams)}, "
                "or add it (add_stream)"
            )
    return {name: weight_of(f"weight of {name!r}", weight) for name, weight in sorted(value.items())}


def weight_of(name: str, value: Any, *, below_one: bool = False) -> Fraction:
    """Return a weight as an exact fraction; raises InputError where it is none above 0."""
    found = _fraction(value)
    if found is None or found <= 0 or (below_one and found >= 1):
        range_ = "above 0 and below 1" if below_one else "above 0"
        raise InputError(
            f"{name} is {shown(value)}: give a number {range_}, such as 0.25 or '1/4'; leave out a stream that is to "
            "give nothing"
        )
    if max(found.numerator, found.denominator) >= 10**_DIGITS:
        raise InputError(f"{name} is {shown(value)}: give one of {_DIGITS} digits at most")
    return found


def at_end_of(value: Any, streams: Mapping[str, Batches]) -> dict[str, str]:
    """Return what each stream does at its end; raises InputError where that cannot be."""
    named = value if isinstance(value, Mapping) else dict.fromkeys(streams, value)
    found = dict.fromkeys(streams, "wait")
    for name, one in named.items():
        if name not in streams:
            raise InputError(f"at_end names the stream {shown(name)}: give one of {sorted(streams)}")
        found[name] = choice("at_end", one, ("wait", "repeat", "leave"))
        if one == "repeat" and streams[name]._position.sequence.passes == 1:
            raise InputError(
                f"at_end is 'repeat' for {name!r}, whose Batches go through it once: give them passes=4, or as many as "
                "you want"
            )
    return found


def _fraction(value: Any) -> Fraction | None:
    """Return a number as it is written; None: it is none, or of too many digits."""
    given: Any = None
    match value:
        case bool() | np.bool_():
            pass
        case float() | np.floating() if math.isfinite(value):
            given = str(value)  # the shortest text that means this number: 0.7 and not the binary one next to it
        case int() | np.integer():
            given = int(value)
        case Fraction():
            given = value
        case Decimal() if value.is_finite() and abs(value.adjusted()) < _DIGITS:
            given = value
        case str() if len(value) <= 2 * _DIGITS and "e" not in value.lower():
            given = value
    try:
        return None if given is None else Fraction(given)
    except (ValueError, ZeroDivisionError):
        return None


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
    _last: tuple[int, MixturePlace] | None = None

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the run's state once all steps up to this one were trained on; raises as `UsedContent.pin`."""
        place = self._place_at(step + 1)
        taken = place.course.given
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
            # In lists, for DCP would split what is in dictionaries into entries.
            "schedule": [place.course.schedule.to_dict()],
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
        position = self.begin.before(step)
        whole_steps = self.reader.whole_steps
        at = position.step if whole_steps else position.sample
        schedule = self.place.course.schedule.before(at)
        if not whole_steps:
            course = schedule.course_at(at)
            return MixturePlace(course, course.given)
        samples = dict.fromkeys(schedule.names, 0)
        for part, stop in position.made(at):
            begun, ended = (schedule.before(edge).course_at(edge).given for edge in (part.first_step, stop))
            for name, taken in ended.items():
                samples[name] += (taken - begun.get(name, 0)) * part.global_batch
        return MixturePlace(schedule.course_at(at), samples)


def beginning_of(streams: Mapping[str, Batches], global_batch: int) -> Position:
    """Return the first position of a mixture; its sequence names all streams, by a hash."""
    opened = {name: batches._position.sequence for name, batches in streams.items()}
    identity = canonical_json({name: [one.stream, one.fingerprint, one.seed] for name, one in opened.items()})
    length = next(iter(opened.values())).sequence_length
    name, fingerprint = "+".join(opened), xxhash.xxh3_128_hexdigest(identity)
    sequence = SequenceId(name, fingerprint, length, seed=0, shuffle=False, eras=(0, None), passes=1)
    return Position.beginning(sequence, global_batch)


def rotates_in(state: Mapping[str, Any]) -> bool:
    """Return whether a state's samples are rotated among the ranks; those of older versions are not."""
    return bool(state["settings"][0].get("rotate"))


def read_mixture(
    state: Mapping[str, Any], begin: Position, streams: Mapping[str, Batches], mixing: Mixing
) -> tuple[Position, dict[str, Position], Schedule, dict[str, int]]:
    """Return where a mixture and its streams stand by a state, its schedule, and what streams gave by it.

    Streams without a weight in it may be missing. Raises InputError where it is another's.
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
        told = mixing.told(rotates=rotates_in(state))
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
        sequence = batches._position.sequence
        if name in named:
            try:
                positions[name] = Position.from_dict(named[name], sequence)
            except InputError as error:
                raise InputError(f"stream {name!r}: {error}") from error
        else:
            positions[name] = Position.beginning(sequence, 1)
    return position, positions, schedule, taken


def fill_of(trainable: TrainableSamples, name: str) -> Fraction:
    """Return the part of a stream's first era that is no padding; raises InputError where that is not there yet."""
    if not trainable.ready(0, 1):
        raise InputError(
            f"by='tokens' looks at the padding of the first era of {name!r}, which is not in {trainable.store} yet: "
            "wait for it, or count samples"
        )
    ((order, _),) = trainable.items(np.zeros(1, np.int64))
    chosen = np.unique(np.linspace(0, order.samples - 1, 1024).astype(np.int64))
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
    if not {*schedule.names} <= {*taken} or not all(type(count) is int and count >= 0 for count in taken.values()):
        raise ValueError("counts are missing")
