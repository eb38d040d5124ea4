"""Which stream of a mixture each sample is from: arithmetic on sample numbers and weights, no I/O.

docs/training.md has the rule, and a plain program that follows it. Weights are fractions, so no host rounds.

Where all weights are known beforehand, no stream is ever off by a whole sample: each unit of a stream has the window in
which an ideal division would make it, these windows can all be kept (the ideal division shows it), and who always takes
what is due first keeps them (Tijdeman 1980; Pfair scheduling). A change that is made known only when it begins can find
several streams so far behind that not all can be served at once: they are then late by a part of a sample for as long
as that takes, and it is never added up.

A `Schedule`, the part of a mixture's state that gives the order, is equal on all ranks and says all that was ever asked
of it: the weights that were given, each change with the place at which it was made known, and each stream that left.
What was known at a place is a `Plan`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import ceil, inf, lcm
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenmill.samples.sequence import Numbers

_TRIALS: Final = 4
"""Patterns that are looked at for one that repeats itself, in a stretch of the same weights."""

_Due: TypeAlias = int | float | Fraction

Weights = Mapping[str, Fraction]


class WeightPiece(NamedTuple):
    """From which sample on which weights hold, up to the next piece."""

    start: int
    weights: tuple[Fraction, ...]
    """Of each stream, by name; their sum is 1."""


@dataclass(frozen=True)
class Plan:
    """Pieces that follow each other, the first one from sample 0 on."""

    names: tuple[str, ...]
    pieces: tuple[WeightPiece, ...]
    left: tuple[tuple[int, int, int], ...] = ()
    """Streams that left: their index, the sample from which on they give none, and how many they gave. A piece begins
    there. What they are behind, or ahead, goes to the others by their weights."""

    @cached_property
    def wanted_at_starts(self) -> list[list[Fraction]]:
        """What each stream ought to have had when each piece begins."""
        found = [[Fraction(0)] * len(self.names)]
        for number, piece in enumerate(self.pieces):
            if number:
                before = self.pieces[number - 1]
                steps = zip(found[-1], before.weights, strict=True)
                found.append([wanted + weight * (piece.start - before.start) for wanted, weight in steps])
            for index, taken in [(index, taken) for index, start, taken in self.left if start == piece.start]:
                rest = found[-1][index] - taken
                found[-1] = [wanted + weight * rest for wanted, weight in zip(found[-1], piece.weights, strict=True)]
                found[-1][index] = Fraction(taken)
        return found

    def piece_at(self, sample: int) -> int:
        """Return the index of the piece in which a sample is."""
        starts = [piece.start for piece in self.pieces]
        return int(np.searchsorted(starts, sample, side="right")) - 1

    def wanted(self, sample: int) -> list[Fraction]:
        """Return what each stream ought to have had of the first ``sample`` samples."""
        index = self.piece_at(sample)
        start, weights = self.pieces[index]
        begun = self.wanted_at_starts[index]
        return [wanted + weight * (sample - start) for wanted, weight in zip(begun, weights, strict=True)]

    def due(self, stream: int, number: int, first: int) -> Fraction | None:
        """Return when a stream ought to have had ``number`` samples, from a piece on; None: never, by this plan."""
        for index in range(first, len(self.pieces)):
            start, weights = self.pieces[index]
            missing = number - self.wanted_at_starts[index][stream]
            if missing <= 0:
                return Fraction(start)
            if not weights[stream]:
                continue
            at = start + missing / weights[stream]
            if index + 1 == len(self.pieces) or at <= self.pieces[index + 1].start:
                return at
        return None


class _Pattern(NamedTuple):
    """A stretch of choices that repeats itself from ``start`` on, and may be used up to ``stop``."""

    start: int
    stop: int | None
    choices: npt.NDArray[np.int64]
    offsets: Numbers
    """Of each choice, how many of its stream's came before it in the pattern."""
    counts: Numbers
    taken: Numbers

    def at(self, samples: Numbers) -> tuple[npt.NDArray[np.int64], Numbers]:
        if len(self.choices) == 1:
            one = int(self.choices[0])
            return np.full(len(samples), one), samples + (int(self.taken[one]) - self.start)
        passed, period = samples - self.start, len(self.choices)
        turns, places = passed // period, passed % period
        streams = self.choices[places]
        numbers: Numbers = (self.offsets + self.taken[self.choices])[places] + turns * self.counts[streams]
        return streams, numbers

    def taken_at(self, sample: int) -> list[int]:
        turns, place = divmod(sample - self.start, len(self.choices))
        begun = np.bincount(self.choices[:place], minlength=len(self.counts))
        found: list[int] = (self.taken + turns * self.counts + begun).tolist()
        return found


class Mixer:
    """Goes through the samples of a mixture, from a place where it is known what each stream has given.

    Where weights stay the same and are fractions of no more than 65,536, a pattern repeats itself, and choices are
    looked up in it; else each costs about a microsecond.
    """

    def __init__(self, plan: Plan, sample: int, taken: Sequence[int], limits: Sequence[int | None] = ()) -> None:
        """Stand before a sample; ``taken``: what streams gave before it; ``limits``: after how many they leave."""
        self.plan = plan
        self.sample = sample
        self.taken = list(taken)
        self.limits = list(limits) or [None] * len(plan.names)
        self.gone: int | None = None
        """The stream that has just given its last sample and leaves; nothing more is chosen with this plan."""
        self._pattern: _Pattern | None = None
        self._trials = _TRIALS
        self._piece = plan.piece_at(sample)

    def copy(self) -> "Mixer":
        """Return another one that stands here."""
        other = Mixer(self.plan, self.sample, self.taken, self.limits)
        other.gone, other._pattern, other._trials = self.gone, self._pattern, self._trials
        return other

    def draw(self, samples: Numbers, stop: int) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Go on to ``stop``, or to where a stream leaves; return stream and number of the (ascending) samples."""
        parts = []
        while self.sample < stop and self.gone is None:
            begin = self.sample
            pattern = self._advance(stop)
            first, last = np.searchsorted(samples, (begin, self.sample)).tolist()
            if first < last:
                parts.append(pattern.at(samples[first:last]))
        return _joined(parts)

    def _advance(self, stop: int) -> _Pattern:
        """Go on towards ``stop``; return where to look up what was passed."""
        pattern = self._pattern
        if pattern is None or (pattern.stop is not None and self.sample >= pattern.stop):
            pattern = self._pattern = self._find_pattern()
        if pattern is not None:
            self.sample = stop if pattern.stop is None else min(stop, pattern.stop)
            self.taken = pattern.taken_at(self.sample)
            return pattern
        begin, before = self.sample, list(self.taken)
        return self._pattern_of(begin, begin, before, self._choose(stop))

    def _find_pattern(self) -> _Pattern | None:
        """Return a pattern that repeats itself from here on, if it pays; stands where it stood."""
        self._settle_piece()
        end, weights = self._end(), self.plan.pieces[self._piece].weights
        period = lcm(*(weight.denominator for weight in weights))
        if period > 1 << 16 or not self._trials:
            return None
        stop = None
        if end is not None:  # what is due behind the piece's end may be due at another time than the pattern says
            stop = end - ceil(1 / min(weight for weight in weights if weight)) - 2
        turns = [
            (limit - taken) // int(weight * period)
            for limit, taken, weight in zip(self.limits, self.taken, weights, strict=True)
            if limit is not None and weight
        ]
        if turns:
            last = self.sample + max(min(turns) - 1, 0) * period
            stop = last if stop is None else min(stop, last)
        if stop is not None and stop - self.sample < 2 * period:
            return None
        self._trials -= 1
        begin, before = self.sample, list(self.taken)
        choices = self._choose(begin + period)
        agrees = [now - then for now, then in zip(self.taken, before, strict=True)] == [w * period for w in weights]
        self.sample, self.taken = begin, before
        return self._pattern_of(begin, stop, before, choices) if agrees else None

    def _pattern_of(self, begin: int, stop: int | None, before: list[int], choices: list[int]) -> _Pattern:
        chosen = np.array(choices, np.int64)
        offsets = np.empty(len(chosen), np.int64)
        counts = np.bincount(chosen, minlength=len(before))
        for stream in np.flatnonzero(counts).tolist():
            offsets[chosen == stream] = np.arange(counts[stream])
        return _Pattern(begin, stop, chosen, offsets, counts, np.array(before, np.int64))

    def _end(self) -> int | None:
        following = self._piece + 1
        return self.plan.pieces[following].start if following < len(self.plan.pieces) else None

    def _settle_piece(self) -> None:
        while (end := self._end()) is not None and self.sample >= end:
            self._piece += 1
            self._trials = _TRIALS

    def _choose(self, stop: int) -> list[int]:
        """Choose one by one up to ``stop``, the piece's end, or where a stream leaves: by the rule.

        Times are counted from the piece's start, in a unit of which all are whole multiples.
        """
        self._settle_piece()
        plan, piece, taken = self.plan, self._piece, self.taken
        start, weights = plan.pieces[piece]
        begun, end = plan.wanted_at_starts[piece], self._end()
        stop = stop if end is None else min(stop, end)
        weighted = [index for index, weight in enumerate(weights) if weight]
        ratios = {index: begun[index] / weights[index] for index in weighted}
        unit = lcm(*(ratio.denominator for ratio in ratios.values()), *(weights[i].numerator for i in weighted))
        gaps = {index: int(unit / weights[index]) for index in weighted}
        beyond = inf if end is None else (end - start) * unit
        due = {index: (taken[index] + 1) * gaps[index] - int(ratios[index] * unit) for index in weighted}

        def key(index: int) -> _Due:
            if index in due and due[index] <= beyond:
                return due[index]
            at = plan.due(index, taken[index] + 1, piece)
            return inf if at is None else (at - start) * unit

        def is_owed(index: int) -> bool:
            """Return whether a stream that has no weight now may give one more."""
            return index not in due and taken[index] < begun[index]

        owed = [index for index in range(len(taken)) if is_owed(index)]
        ready: list[tuple[_Due, int]] = [(key(index), index) for index in owed]
        waiting = [((due[index] - gaps[index]) // unit, index) for index in weighted]
        heapify(ready)
        heapify(waiting)
        chosen = []
        limits = self.limits
        for slot in range(self.sample - start, stop - start):
            while waiting and waiting[0][0] <= slot:
                index = heappop(waiting)[1]
                heappush(ready, (key(index), index))
            index = heappop(ready)[1]
            chosen.append(index)
            taken[index] += 1
            if taken[index] == limits[index]:
                self.gone = index
                break
            if index in due:
                free = due[index] // unit  # from when on the next one may be taken
                due[index] += gaps[index]
                heappush(waiting, (free, index))
            elif is_owed(index):
                heappush(ready, (key(index), index))
        self.sample += len(chosen)
        return chosen


def _joined(parts: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    if len(parts) == 1:
        return parts[0]
    streams, numbers = zip(*parts, strict=True) if parts else ((np.empty(0, np.int64),),) * 2
    return np.concatenate(streams), np.concatenate(numbers)


class Point(NamedTuple):
    """From which place on which weights hold."""

    start: int
    """The number of a sample; of a step, where a mixture takes whole batches."""
    weights: Weights
    """Of the streams that give samples; others give none."""


@dataclass(frozen=True)
class Change:
    """What became known of the weights at a place."""

    known: int
    """The place: the order of what comes from there on may depend on it."""
    taken: Mapping[str, int]
    points: tuple[Point, ...] = ()
    """What holds from the first of them on, in place of all that was to hold there."""
    left: str | None = None
    """The stream that left at this place, for it had given all; its weight goes to the others."""


@dataclass(frozen=True)
class Schedule:
    """Weights over the samples of a mixture."""

    points: tuple[Point, ...]
    linear: bool = False
    """Whether weights change steadily from point to point; else at each point."""
    changes: tuple[Change, ...] = ()
    fill: Mapping[str, Fraction] = field(default_factory=dict)
    """Where weights count tokens, the part of a stream's tokens that are no padding; of other streams, 1."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The streams, ascending."""
        points = [*self.points, *(point for change in self.changes for point in change.points)]
        return tuple(sorted({name for point in points for name in point.weights}))

    def course_at(self, place: int) -> "Course":
        """Return what goes on by this schedule from a place on, by way of the last change that was known there."""
        known = [(change.known, change.taken) for change in self.changes if change.known <= place]
        begin, taken = known[-1] if known else (0, {})
        return Course(self, begin, [taken.get(name, 0) for name in self.names]).go_to(place)

    def before(self, place: int) -> "Schedule":
        """Return the schedule as it was known when this place was the next one."""
        return replace(self, changes=tuple(change for change in self.changes if change.known <= place))

    def changed(self, known: int, taken: Sequence[int], *points: Point, left: int | None = None) -> "Schedule":
        """Return the schedule with a change, as of a place and what was taken: other weights, or a stream leaves."""
        gone = None if left is None else self.names[left]
        change = Change(known, dict(zip(self.names, taken, strict=True)), points, gone)
        return replace(self, changes=(*self.changes, change))

    @cached_property
    def left(self) -> dict[str, int]:
        """The streams that left, and from which place on they give nothing."""
        return {change.left: change.known for change in self.changes if change.left is not None}

    @property
    def end(self) -> int | None:
        """The place from which on no stream gives anything, since all that were to give left; None: there is none."""
        return self._pieces[1]

    def weights_at(self, place: int) -> dict[str, Fraction]:
        """Return the weights that hold at a place, of the streams that have one; their sum is 1."""
        plan = self.plan
        held = plan.pieces[plan.piece_at(place)].weights
        return {name: weight for name, weight in zip(self.names, held, strict=True) if weight}

    @property
    def plan(self) -> Plan:
        """What is known of the weights now."""
        left = ((self.names.index(c.left), c.known, c.taken[c.left]) for c in self.changes if c.left is not None)
        return Plan(self.names, self._pieces[0], tuple(left))

    @cached_property
    def _pieces(self) -> tuple[tuple[WeightPiece, ...], int | None]:
        """Return what holds from where on, and the place behind which nothing does."""
        points = _steadily(self.points) if self.linear else list(self.points)
        for change in self.changes:
            if change.points:
                new = _steadily(change.points) if self.linear else change.points
                points = [point for point in points if point.start < new[0].start] + list(new)
        for stream, place in self.left.items():
            before = [point for point in points if point.start < place]
            held = [point for point in points if point.start <= place][-1].weights
            later = [Point(place, held), *(point for point in points if point.start > place)]
            points = before + [
                Point(start, {name: weight for name, weight in weights.items() if name != stream})
                for start, weights in later
            ]
        pieces: list[WeightPiece] = []
        for start, weights in points:
            counted = [weights.get(name, Fraction(0)) / self.fill.get(name, 1) for name in self.names]
            total = sum(counted)
            if not total:
                return tuple(pieces), start
            pieces.append(WeightPiece(start, tuple(weight / total for weight in counted)))
        return tuple(pieces), None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "points": _told(self.points),
            "linear": self.linear,
            "fill": {name: str(part) for name, part in self.fill.items()},
            "changes": [
                {"known": c.known, "taken": dict(c.taken), "points": _told(c.points), "left": c.left}
                for c in self.changes
            ],
        }

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "Schedule":
        """Return the schedule that `to_dict` told; raises LookupError, TypeError or ValueError where it is none."""
        changes = tuple(
            Change(_place(c["known"]), {n: _place(t) for n, t in c["taken"].items()}, _read(c["points"]), c["left"])
            for c in value["changes"]
        )
        fill = {name: Fraction(part) for name, part in value["fill"].items()}
        found = cls(_read(value["points"]), bool(value["linear"]), changes, fill)
        if not found.points or any(change.left not in {None, *found.names} for change in changes):
            raise ValueError("the schedule names no weights, or a stream that has none")
        return found


def _steadily(points: Sequence[Point]) -> list[Point]:
    """Return points between which weights change steadily, as pieces that have the weights of their middle."""
    found = []
    for (start, before), (stop, after) in pairwise(points):
        parts = min(256, stop - start)
        first, last = _normal(before), _normal(after)
        for part in range(parts):
            share = Fraction(2 * part + 1, 2 * parts)
            weights = {
                name: weight
                for name in sorted({*first, *last})
                if (weight := first.get(name, Fraction(0)) * (1 - share) + last.get(name, Fraction(0)) * share)
            }
            found.append(Point(start + (stop - start) * part // parts, weights))
    return [*found, Point(points[-1].start, points[-1].weights)]


def _normal(weights: Weights) -> Weights:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _told(points: Sequence[Point]) -> list[Any]:
    return [[point.start, {name: str(weight) for name, weight in point.weights.items()}] for point in points]


def _read(value: Any) -> tuple[Point, ...]:
    found = tuple(
        Point(_place(start), {name: Fraction(weight) for name, weight in weights.items()}) for start, weights in value
    )
    if any(not point.weights or min(point.weights.values()) <= 0 for point in found):
        raise ValueError("weights are missing, or not above 0")
    return found


def _place(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no place")
    return value


class Course:
    """Goes through the places of a mixture by a schedule, and lets streams leave that have given all."""

    def __init__(
        self,
        schedule: Schedule,
        place: int,
        taken: Sequence[int],
        limit_of: Callable[[str, int], int | None] = lambda _name, _place: None,
        known: Mixer | None = None,
    ) -> None:
        """Stand before a place, as what ``known`` knows, by what each stream has given before.

        ``limit_of`` says how many samples or steps a stream has given when it leaves; None: unknown, or it does not.
        """
        self.schedule = schedule
        self._limit_of = limit_of
        self._mixer = self._open(place, taken) if known is None else known.copy()

    @property
    def place(self) -> int:
        """The next one."""
        return self._mixer.sample

    @property
    def taken(self) -> list[int]:
        """What each stream of the schedule has given before it."""
        return self._mixer.taken

    @property
    def given(self) -> dict[str, int]:
        """The same by the names of the streams."""
        return dict(zip(self.schedule.names, self.taken, strict=True))

    def copy(self) -> "Course":
        """Return another one that stands here, and knows what is known of limits now."""
        known = self._mixer if self._limits(self.place) == self._mixer.limits else None
        return Course(self.schedule, self.place, self.taken, self._limit_of, known)

    def draw(self, places: Numbers, stop: int) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Go on to ``stop``, or to where no stream is left; return, of these places before it, stream and number."""
        if self.ended:
            return _joined([])
        found = [self._mixer.draw(places, self._reach(stop))]
        while self._settle() and self.place < stop:
            done = int(np.searchsorted(places, self.place))
            found.append(self._mixer.draw(places[done:], self._reach(stop)))
        return _joined(found)

    def go_to(self, stop: int) -> "Course":
        """Go on to ``stop``, or to where no stream is left."""
        self.draw(np.empty(0, np.int64), stop)
        return self

    @property
    def ended(self) -> bool:
        """Whether no stream is left."""
        return self.ended_at(self.place)

    def ended_at(self, place: int) -> bool:
        """Whether no stream is left at a place."""
        end = self.schedule.end
        return end is not None and place >= end

    def _reach(self, stop: int) -> int:
        """Return how far to go at most: behind the end, no stream has a weight."""
        end = self.schedule.end
        return stop if end is None else min(stop, end)

    def _settle(self) -> bool:
        """Let a stream leave that has just given all; return whether others go on."""
        if self._mixer.gone is None or self.ended:
            return False
        self.schedule = self.schedule.changed(self.place, self.taken, left=self._mixer.gone)
        self._mixer = self._open(self.place, self.taken)
        return not self.ended

    def _limits(self, place: int) -> list[int | None]:
        left = self.schedule.left
        return [None if name in left else self._limit_of(name, place) for name in self.schedule.names]

    def _open(self, place: int, taken: Sequence[int]) -> Mixer:
        while True:  # a stream may have nothing at all
            limits = self._limits(place)
            gone = [n for n, limit in enumerate(limits) if limit is not None and taken[n] >= limit]
            if not gone or self.ended_at(place):
                return Mixer(self.schedule.plan, place, taken, limits)
            self.schedule = self.schedule.changed(place, taken, left=gone[0])
