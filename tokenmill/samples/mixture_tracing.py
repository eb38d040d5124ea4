"""From a step of a run over a mixture to the Kafka records that it was made of: the state and files alone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tokenmill.errors import InputError, StoreError
from tokenmill.samples.position import Position, StepRange
from tokenmill.samples.schedule import Course, Schedule
from tokenmill.samples.sequence import rotation
from tokenmill.samples.tracing import TracedSample, Tracer
from tokenmill.store.layout import StorePath


class TracedPart(NamedTuple):
    """A sample of a mixture."""

    name: str
    """Of its stream in the mixture."""
    traced: TracedSample
    """What it was made of; its step and row are the mixture's, its sample and era the stream's own."""


def is_mixture(state: Any) -> bool:
    """Whether a state is one of a `Mixture`."""
    return isinstance(state, Mapping) and "mixture" in state


def part_of(state: Mapping[str, Any], name: str) -> Position:
    """Return where a stream of a mixture stands, by the mixture's state; its steps are its samples.

    Raises:
        InputError: the mixture has no such stream, or it is no state.

    """
    streams = state.get("streams")
    named = {one.get("name"): one for one in streams if isinstance(one, Mapping)} if isinstance(streams, list) else {}
    if name not in named:
        raise InputError(
            f"the state is of a mixture without the stream {name!r}: give one of {sorted(map(str, named))}"
        )
    return Position.read(named[name])


class MixtureTracer:
    """Traces the samples of one run over several streams."""

    def __init__(
        self, store: StorePath, state: Mapping[str, Any], stores: Mapping[str, StorePath] = MappingProxyType({})
    ) -> None:
        """Open the streams that a state names: each in the store that ``stores`` has for it, or else in ``store``.

        Raises:
            InputError: it is no state of a mixture, or one over other streams or content; or no stream has such a name.
            StoreError: the store lacks a stream.
            DamagedError: the files are damaged.

        """
        try:
            (self._schedule,) = map(Schedule.read, state["schedule"])
            self._ranges = [StepRange(*part) for part in state["ranges"]]
            self._whole_steps = state["settings"][0]["interleave"] == "batch"
            self._rotates = bool(state["settings"][0].get("rotate"))
            self._sample = int(state["sample"])
            named = {one["name"]: Position.read(one) for one in state["streams"]}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is no state of a Mixture ({error!r}): give what state_dict() returned") from error
        self._positions = named
        if unknown := [*stores.keys() - named.keys()]:
            raise InputError(
                f"the mixture has no stream {min(unknown)!r}: name the store of one of {sorted(map(str, named))}"
            )
        self._tracers = {name: self._traced(name, stores.get(name, store)) for name in self._schedule.names}
        self.doubts = {name: tracer.doubt for name, tracer in self._tracers.items() if tracer.doubt is not None}
        """Of which streams it is not known whether the run read this content, and why."""

    def _traced(self, name: str, store: StorePath) -> Tracer:
        try:
            return Tracer(store, self._positions[name])
        except (StoreError, InputError) as error:
            raise type(error)(
                f"{error}. The mixture calls it {name!r}; if it is in another store, say --store-of {name}=DIRECTORY"
            ) from error

    def stream_of(self, name: str) -> str:
        """Return which stream of the store has a name in the mixture."""
        return self._positions[name].sequence.stream

    def step(self, number: int) -> Iterator[TracedPart]:
        """Yield the samples of a step in the order of the global batch.

        Raises:
            InputError: the step was not made as of the state, or the store does not hold its blocks.

        """
        position = replace(next(iter(self._positions.values())), sample=self._sample, ranges=tuple(self._ranges))
        samples = position.samples_of(number)
        if self._whole_steps:
            (name,) = (name for name, _ in self._drawn(number, number + 1))
            first = sum(
                part.global_batch * sum(one == name for one, _ in self._drawn(part.first_step, min(stop, number)))
                for part, stop in self._made(number)
            )
            drawn = [(name, first + row) for row in range(len(samples))]
        else:
            drawn = self._drawn(samples.start, samples.stop)
            first = int(rotation(np.array([number]), len(samples))[0]) if self._rotates else 0
            drawn = drawn[first:] + drawn[:first]
        for row, (name, own) in enumerate(drawn):
            traced = self._tracers[name].sample(own)
            yield TracedPart(name, replace(traced, use=replace(traced.use, step=number, row=row)))

    def _made(self, number: int) -> list[tuple[StepRange, int]]:
        """Return the ranges of steps before one, and where each ends."""
        starts = [part.first_step for part in self._ranges[1:]]
        return [
            (part, stop) for part, stop in zip(self._ranges, [*starts, number], strict=True) if part.first_step < number
        ]

    def _drawn(self, first: int, stop: int) -> list[tuple[str, int]]:
        """Return the stream of each place, and which of the stream's it is."""
        found: list[tuple[str, int]] = []
        while first < stop:
            schedule = self._schedule.before(first)
            known, taken = schedule.base(first)
            end = min([stop, *(change.known for change in self._schedule.changes if change.known > first)])
            course = Course(schedule, known, taken).go_to(first)
            streams, numbers = course.draw(np.arange(first, end), end)
            names = schedule.names
            found += [(names[stream], own) for stream, own in zip(streams.tolist(), numbers.tolist(), strict=True)]
            first = end
        return found
