"""The weights of a mixture over its samples, and every change of them: the part of its state that gives the order.

A schedule is equal on all ranks and says all that was ever asked of it: the weights that were given, each change with
the place at which it was made known, and each stream that left. What was known at a place is a `Plan`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.samples.mixing import Mixer, Plan, WeightPiece
from tokenmill.samples.sequence import Numbers

_PARTS: Final = 256
"""Into how many pieces a linear stretch between two points is cut at most; each has the weights of its middle."""

Weights = Mapping[str, Fraction]


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
    """What each stream had given there."""
    points: tuple[Point, ...] = ()
    """What holds from the first of them on, in place of all that was to hold there."""
    left: str | None = None
    """The stream that left at this place, for it had given all; its weight goes to the others."""


@dataclass(frozen=True)
class Schedule:
    """Weights over the samples of a mixture."""

    points: tuple[Point, ...]
    """As they were given, the first one from 0 on."""
    linear: bool = False
    """Whether weights change steadily from point to point; else at each point."""
    changes: tuple[Change, ...] = ()
    """In the order in which they became known."""
    fill: Mapping[str, Fraction] = field(default_factory=dict)
    """Where weights count tokens, the part of a stream's tokens that are no padding; of other streams, 1."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The streams, ascending."""
        points = [*self.points, *(point for change in self.changes for point in change.points)]
        return tuple(sorted({name for point in points for name in point.weights}))

    def base(self, place: int) -> tuple[int, list[int]]:
        """Return the last place, up to this one, of which it is known what each stream had given, and that."""
        known = [change for change in self.changes if change.known <= place]
        taken = known[-1].taken if known else {}
        return (known[-1].known if known else 0), [taken.get(name, 0) for name in self.names]

    def before(self, place: int) -> "Schedule":
        """Return the schedule as it was known when this place was the next one."""
        return replace(self, changes=tuple(change for change in self.changes if change.known <= place))

    def with_points(self, known: int, taken: Sequence[int], points: Sequence[Point]) -> "Schedule":
        """Return the schedule that has these weights from their first place on, as of a place and what was taken."""
        change = Change(known, dict(zip(self.names, taken, strict=True)), tuple(points))
        return replace(self, changes=(*self.changes, change))

    def without(self, known: int, taken: Sequence[int], stream: int) -> "Schedule":
        """Return the schedule in which a stream leaves at a place."""
        change = Change(known, dict(zip(self.names, taken, strict=True)), left=self.names[stream])
        return replace(self, changes=(*self.changes, change))

    @cached_property
    def left(self) -> dict[str, int]:
        """The streams that left, and from which place on they give nothing."""
        return {change.left: change.known for change in self.changes if change.left is not None}

    @property
    def end(self) -> int | None:
        """The place from which on no stream gives anything, since all that were to give left; None: there is none."""
        return self._pieces[1]

    @property
    def plan(self) -> Plan:
        """What is known of the weights now."""
        return Plan(
            self.names,
            self._pieces[0],
            tuple((self.names.index(c.left), c.known, c.taken[c.left]) for c in self.changes if c.left is not None),
        )

    @cached_property
    def _pieces(self) -> tuple[tuple[WeightPiece, ...], int | None]:
        """Return what holds from where on, and the place behind which nothing does."""
        points = self._known()
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

    def _known(self) -> list[Point]:
        """Return what holds from where on, without regard to streams that left."""
        points = _steadily(self.points) if self.linear else list(self.points)
        for change in self.changes:
            if change.points:
                new = _steadily(change.points) if self.linear else change.points
                points = [point for point in points if point.start < new[0].start] + list(new)
        return points

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
        """Return the schedule that `to_dict` told.

        Raises:
            LookupError, TypeError, ValueError: it is none.

        """
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
    """Return points between which weights change steadily, as pieces of constant weights."""
    found = []
    for (start, before), (stop, after) in pairwise(points):
        parts = min(_PARTS, stop - start)
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
        """Stand before a place.

        Args:
            schedule: what is known there.
            place: the number of the next sample, or step.
            taken: what each stream of the schedule has given before.
            limit_of: says how many samples or steps a stream has given when it leaves; None: it does not leave, or
                that is not known yet.
            known: stands here, and knows the same.

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

    def copy(self) -> "Course":
        """Return another one that stands here, and knows what is known of limits now."""
        known = self._mixer if self._limits(self.place) == self._mixer.limits else None
        return Course(self.schedule, self.place, self.taken, self._limit_of, known)

    def draw(self, places: Numbers, stop: int) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Go on to ``stop``, or to where no stream is left; return, of these places before it, stream and number."""
        if self.ended:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found = [self._mixer.draw(places, stop)]
        while self._settle() and self.place < stop:
            done = int(np.searchsorted(places, self.place))
            found.append(self._mixer.draw(places[done:], stop))
        if len(found) == 1:
            return found[0]
        streams, numbers = zip(*found, strict=True)
        return np.concatenate(streams), np.concatenate(numbers)

    def go_to(self, stop: int) -> "Course":
        """Go on to ``stop``, or to where no stream is left."""
        while not self.ended and self.place < stop:
            self._mixer.go_to(stop)
            self._settle()
        return self

    @property
    def ended(self) -> bool:
        """Whether no stream is left."""
        return self.ended_at(self.place)

    def ended_at(self, place: int) -> bool:
        """Whether no stream is left at a place."""
        end = self.schedule.end
        return end is not None and place >= end

    def _settle(self) -> bool:
        """Let a stream leave that has just given all; return whether others go on."""
        if self._mixer.gone is None or self.ended:
            return False
        self.schedule = self.schedule.without(self.place, self.taken, self._mixer.gone)
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
            self.schedule = self.schedule.without(place, taken, gone[0])
