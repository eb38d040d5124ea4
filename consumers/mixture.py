"""Batches of several streams by weight: one order for any number of ranks, also where the weights change meanwhile."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Self

from tokenmill.errors import InputError
from tokenmill.samples.mixing import Course, Point, Schedule
from tokenmill.samples.sequence import Position
from tokenmill.samples.trainable import TrainableSamples

from . import arguments, mixture_state
from .batch import Batch, StateAfter
from .batches import Batches
from .mixture_state import MixedReader, MixtureLeg, MixturePlace, StreamShare
from .step_loop import Found, StepLoop
from .transfer import End
from .waiting import Awaited, ReachableStream


class Mixture(StepLoop):
    """`Batches` of several streams, each of which has its share of the samples, as their weights say.

    Sample n of the mixture is of the stream that is due first (`tokenmill.samples.mixing`), and the next one there. So
    there is one sequence of samples for all ranks, and each stream's own order in it is the one that it has alone. No
    stream is ever off by a whole sample of what its weights say, at any place, where these were known beforehand.

    Weights are exact: whole numbers, `Fraction`, `Decimal`, text such as ``"7/10"``, and floats as they are written
    (0.7 is 7/10). They need not have the sum 1. What iterating, states, ranks and steps are is as in `Batches`.
    """

    _dataset = "MixtureDataset"

    @arguments.naming_unknown
    def __init__(
        self,
        streams: Mapping[str, Batches],
        weights: Mapping[str, Any] | list[tuple[int, Mapping[str, Any]]],
        *,
        linear: bool = False,
        unit: str | None = None,
        at_end: str | Mapping[str, str] = "wait",
        interleave: str = "sample",
        by: str = "samples",
    ) -> None:
        """Mix streams from the beginning.

        Args:
            streams: `Batches` of each, by names of your own, opened alike: batch size, sequence length, ranks, device
                and what else is not the stream's own. They are read by the mixture from now on.
            weights: of each stream; or a schedule, ``[(0, {...}), (1_000_000, {...})]``, in which each holds from a
                place on. A stream without a weight gives nothing there.
            linear: whether weights of a schedule change steadily from place to place, in 256 parts at most.
            unit: what places of a schedule count, "sample" or "step". A step begins at another sample when ranks or
                batches become others, so only with "sample" is the order the same for any number of ranks.
            at_end: what happens behind a stream's last sample, for all or by name: "wait" or "repeat" end the mixture
                when it wants one more (the passes of "repeat" are the ``passes`` of its `Batches`); "leave" gives its
                weight to the others from there on, once its end is marked in the store. Where a stream has nothing yet,
                the mixture waits.
            interleave: "sample", or "batch": all samples of a step are of one stream, and weights count steps.
            by: "tokens" divides weights by the part of each stream's tokens that is no padding in its first era.

        Raises:
            InputError: streams, weights or options do not fit each other; says what to do.
            DamagedError: with "tokens", the first era is damaged.
        """
        with mixture_state.told("streams", streams):
            self._streams = mixture_state.streams_of(streams)
        mixture_state.require_alike(self._streams)
        first = next(iter(self._streams.values()))
        self._tokenizer = first._tokenizer
        delivery, ranks = first._delivery, first._ranks
        begin = mixture_state.beginning_of(self._streams, ranks.global_batch)
        places = [place for one in self._streams.values() for place in one._reachable.streams]
        super().__init__(delivery, ReachableStream(*places), begin)
        self._mixing = mixing = mixture_state.mixing_of(
            self._streams, weights, linear=linear, unit=unit, at_end=at_end, interleave=interleave, by=by
        )
        if mixing.whole_steps and len(self._phases.batch_sizes) > 1:
            raise InputError(
                "with interleave='batch' weights count steps of one size: give one batch_size, no schedule"
            )
        self._reader = MixedReader(ranks, whole_steps=mixing.whole_steps)
        self._positions: dict[str, Position] = {}
        """Of each stream, in its own sequence, where it stood when a state was loaded."""
        for name in self._streams:
            self._add_part(name)
        self._place = self._first_place()
        self._changed = 0  # counts the changes of weights

    @classmethod
    def open(
        cls,
        streams: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, Any] | list[tuple[int, Mapping[str, Any]]],
        **options: Any,
    ) -> Self:
        """Open the `Batches` of each stream, and mix them.

        Args:
            streams: of each name, the arguments of its `Batches`, such as ``{"store": …, "stream": …, "passes": 4}``.
            weights: as for `Mixture`.
            options: arguments of `Mixture`, and arguments of `Batches` for all streams.

        Raises:
            as `Batches` and `Mixture`.
        """
        mixed = {name: options.pop(name) for name in mixture_state.MIXED if name in options}
        with mixture_state.told("streams", streams):
            given = arguments.options_of("streams", streams)
            each = {name: arguments.options_of(f"stream {name!r}", own) for name, own in given.items()}
        opened = {}
        for name, own in each.items():
            with mixture_state.told(f"stream {name!r}", own):
                opened[name] = Batches(**(options | own))
        return cls(opened, weights, **mixed)

    def __repr__(self) -> str:
        weights = ", ".join(f"{name} {float(share.share):.3g}" for name, share in self.shares().items())
        return f"Mixture({weights}; {self._ranks.global_batch} samples a step, next step {self.step})"

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from here on; weights that are set meanwhile count from the next step at the earliest.

        Raises as iterating over `Batches` does.
        """
        idle = self._reader.parts.keys() - set(self._place.course.schedule.names)
        if idle:
            raise InputError(f"the stream {min(idle)!r} has no weight at any place: give it one, or leave it out")
        changed = None
        while changed != self._changed:
            changed = self._changed
            for batch in super().__iter__():
                yield batch
                if changed != self._changed:
                    break

    def set_weights(self, weights: Mapping[str, Any], from_step: int | None = None) -> None:
        """Let other weights hold from a step on, in place of all that was to hold from there on.

        To be called alike on all ranks, between the same steps; the state knows of it from then on.

        Args:
            weights: of each stream; of those that it does not name, none.
            from_step: the number of the step; None: the next one.

        Raises InputError where a weight is none, or of no stream, or of one that left; or the step was made already.
        """
        with mixture_state.told("weights", weights):
            exact = mixture_state.weights_of(weights, self._reader.parts)
        self._change(exact, from_step)

    def add_stream(self, name: str, batches: Batches, weight: Any, from_step: int | None = None) -> None:
        """Mix in another stream from a step on; the others keep their weights to each other.

        To be called alike on all ranks, as `set_weights`. A run that goes on from a later state gives this stream to
        `Mixture` with the others.

        Args:
            name: of the stream in the mixture.
            batches: opened as those of the others.
            weight: its share of all samples, above 0 and below 1, such as 0.1.
            from_step: the number of the step; None: the next one.

        Raises:
            InputError: the stream is in the mixture already, or does not fit; the weight is none, or the step was made.
        """
        with mixture_state.told("name", name), mixture_state.told("batches", batches):
            streams = mixture_state.streams_of({name: batches})
        if name in self._place.course.schedule.names:
            raise InputError(
                f"name is {name!r}, a stream that is in the mixture already: give another one, or set_weights"
            )
        with mixture_state.told("batches", batches):
            mixture_state.require_alike({**self._streams, **streams})
        share = mixture_state.weight_of(f"weight of {name!r}", weight, below_one=True)
        start = self._start_of(from_step)
        self._settle()
        self._streams = dict(sorted({**self._streams, **streams}.items()))
        self._mixing.at_end.setdefault(name, "wait")
        self._add_part(name)
        others = {other: part * (1 - share) for other, part in self._place.course.schedule.weights_at(start).items()}
        self._change({**others, name: share}, from_step)

    def shares(self) -> dict[str, StreamShare]:
        """Return, of each stream, what it was to give and gave up to now, and how fresh its latest samples are."""
        place = self._now()
        course, schedule, taken = place.course, place.course.schedule, place.course.given
        weights = {} if course.ended else schedule.weights_at(course.place)
        wanted = dict(zip(schedule.names, schedule.plan.wanted(course.place), strict=True))
        found = {}
        for name, part in self._reader.parts.items():
            content = part.trainable.content
            samples = place.samples.get(name, 0) if self._mixing.whole_steps else taken.get(name, 0)
            passed, closed = content.used(samples - 1) or (None, None)
            gone = name in schedule.left and schedule.left[name] <= course.place
            found[name] = StreamShare(
                share=Fraction(0) if gone else weights.get(name, Fraction(0)),
                wanted=wanted.get(name, Fraction(0)),
                delivered=taken.get(name, 0),
                samples=samples,
                passes=0 if passed is None else passed + (samples == content.total()),
                left=gone,
                newest=closed,
            )
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved, as `Batches` do; weights that were set, and streams that left, come with it.

        Raises InputError where it is no state of a mixture, or one of another: other streams, weights, seeds or
        lengths; or a stream that was added later is not given; or it is one over other content.
        """
        state = arguments.state_of(state_dict, {"format", "mixture"}, "what state_dict() of Mixture returned")
        saved, positions, schedule, given = mixture_state.read_mixture(state, self._begin, self._streams, self._mixing)
        for name, position in positions.items():
            self._reader.parts[name].trainable.content.accept(position)
        self._go_on(saved, state.get("lengths"))
        self._positions, self._reader.rotates = positions, mixture_state.rotates_in(state)
        changed, place = self._position.ranges != saved.ranges, self._number(self._position)
        taken = [given.get(name, 0) for name in schedule.names]
        if changed and self._mixing.by_step and not self._mixing.whole_steps:
            # Steps to come begin at other samples now.
            later = [point for point in self._resolved() if point.start > place]
            if later and not any(change.points for change in schedule.changes):
                now = Point(place, schedule.weights_at(place))
                schedule = schedule.changed(place, taken, now, *later)
        self._place = self._open(schedule, place, taken, {name: at.sample for name, at in positions.items()})

    def rewind(self) -> Self:
        """Go back to the beginning of the mixture, and to the weights that were given then."""
        super().rewind()
        self._positions = {n: Position.beginning(p.sequence, 1) for n, p in self._positions.items()}
        self._place = self._first_place()
        return self

    def _reads(self) -> list[tuple[TrainableSamples, int]]:
        samples = self._now().samples
        return [(part.trainable, samples.get(name, 0)) for name, part in self._reader.parts.items()]

    def _with_content(self, state: dict[str, Any]) -> dict[str, Any]:
        used = {one["name"]: one["content"] for one in self.state_dict()["streams"]}
        streams = [one | {"content": used.get(one["name"], one["content"])} for one in state["streams"]]
        return state | {"streams": streams}

    def __len__(self) -> int:
        places = self._reader.places_to_end(self._place)
        if places is None:
            raise TypeError(
                "how many batches this mixture has is not known, for not all of its streams have an end that is in "
                "their store: name eras that are there, close the streams (`tokenmill close`, or `tokenmill "
                "pack … --end`), or leave len() out"
            )
        if self._mixing.whole_steps:
            return self._position.step + places
        return replace(self._position, sample=self._position.sample + places).step

    @property
    def stream(self) -> str:
        """The names of the streams, with plus signs."""
        return "+".join(self._streams)

    @property
    def skipped(self) -> int:
        """Number of damaged blocks that this rank left out so far."""
        return sum(batches.skipped for batches in self._streams.values())

    def _release(self) -> None:
        for batches in self._streams.values():
            batches.close()

    def _add_part(self, name: str) -> None:
        batches = self._streams[name]
        self._reader.parts[name] = batches._reader
        if self._mixing.at_end[name] == "leave":
            self._reader.leaving.add(name)
        self._positions[name] = Position.beginning(batches._position.sequence, 1)
        views = {each.trainable.views for each in self._reader.parts.values()}
        for each in self._reader.parts.values():
            each.checks_copies = views == {1}

    def _first_place(self) -> MixturePlace:
        counted = self._reader.parts.items() if self._mixing.counts_tokens else ()
        fill = {name: mixture_state.fill_of(part.trainable, name) for name, part in counted}
        schedule = Schedule(self._resolved(), self._mixing.linear, (), fill)
        return self._open(schedule, 0, [0] * len(schedule.names), {})

    def _resolved(self) -> tuple[Point, ...]:
        """Return the given points by the places at which they begin, with the batches of now."""
        if not self._mixing.by_step or self._mixing.whole_steps:
            return self._mixing.points
        return tuple(Point(self._position.before(start).sample, weights) for start, weights in self._mixing.points)

    def _open(self, schedule: Schedule, place: int, taken: list[int], samples: Mapping[str, int]) -> MixturePlace:
        begun = dict(zip(schedule.names, taken, strict=True))
        reader = self._reader  # not the mixture itself: threads that read ahead end with the last reference to it

        def limit(name: str, _place: int) -> int | None:
            return reader.limit(name, begun.get(name, 0), samples.get(name, 0))

        return MixturePlace(Course(schedule, place, taken, limit), dict(samples))

    def _number(self, position: Position) -> int:
        return position.step if self._mixing.whole_steps else position.sample

    def _now(self) -> MixturePlace:
        samples = self._position.after(self._made).sample - self._position.sample
        return self._reader.advance(self._place, self._made, samples) if self._made else self._place

    def _start_of(self, from_step: int | None) -> int:
        step = self.step if from_step is None else arguments.whole("from_step", from_step, 0, "steps")
        if step < self.step:
            raise InputError(
                f"from_step is {arguments.shown(from_step)}, which was made already: give the next one, {self.step}, "
                "or a later"
            )
        return self._number(self._position.before(step))

    def _change(self, weights: Mapping[str, Any], from_step: int | None) -> None:
        start = self._start_of(from_step)
        self._settle()
        course = self._place.course
        left = sorted(course.schedule.left.keys() & weights.keys())
        if left:
            raise InputError(f"the stream {left[0]!r} left the mixture at its end: give weights to others alone")
        schedule = course.schedule.changed(course.place, course.taken, Point(start, weights))
        taken = [course.given.get(name, 0) for name in schedule.names]
        self._place = self._open(schedule, course.place, taken, self._place.samples)
        self._changed += 1

    def _settle(self) -> None:
        if self._made:
            course, samples = self._now()
            self._place = self._open(course.schedule, course.place, course.taken, samples)
        super()._settle()

    def _states(self) -> StateAfter:
        contents = {name: part.trainable.content for name, part in self._reader.parts.items()}
        told = self._mixing.told(rotates=self._reader.rotates) | self._told_lengths()
        leg = MixtureLeg(self._position, self._place, self._reader, contents, dict(self._positions), told)
        return leg.state_after

    def _looks(self) -> Iterator[Found | None]:
        walk, place, parts = self._walk(), self._place, self._reader.parts
        step, sample = walk.step, walk.sample
        while True:
            _, self._reader.ranks, steps = walk.ahead()
            if walk.step > step:
                place = self._reader.advance(place, walk.step - step, walk.sample - sample)
                step, sample = walk.step, walk.sample
            agrees = all(parts[name].trainable.content.compare(at) for name, at in self._positions.items())
            chunk = self._reader.read(place, walk.step, steps) if agrees else None  # a state may be ahead of the stores
            if chunk is End.END:
                if not step and not len(self):
                    raise InputError(
                        f"a step takes {self._ranks.global_batch} samples, but a stream of the mixture ends before it "
                        "has its part of them: give a smaller batch_size, more eras, or at_end='leave'"
                    )
                return
            if chunk is None or isinstance(chunk, End):
                yield None
                continue
            yield walk.found(chunk)
            walk.made(chunk.steps)

    def _awaited(self) -> Awaited:
        missing = self._reader.missing
        if missing is None:
            return Awaited("the streams of the mixture, whose states are ahead of their stores: bring these up to date")
        name, sample = missing
        awaited = self._streams[name]._awaited_at(sample)
        return awaited._replace(what=f"{name!r} in a mixture: {awaited.what}")
