"""From a step to the Kafka records that it was made of, and from a record to the steps that took it: files alone.

From a step, each sample costs a constant number of small reads. From a record, the document tables of a partition are
bisected, because the offset of each block's last piece never falls, and then the eras, because each continues the one
before. The place in an era's order is computed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from tokenmill.errors import InputError, StoreError
from tokenmill.samples.document_index import most_age
from tokenmill.samples.mixing import Schedule
from tokenmill.samples.sequence import Position, Samples, StepRange, count_views, join, rotation
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import PartitionReader, partitions_in, read_stream
from tokenmill.store.layout import StorePath, store_directory
from tokenmill.wire.pieces import PADDING

_AT_ONCE: Final = 4096
"""Samples that are located at a time: memory is bounded however large a batch is."""


@dataclass(frozen=True, slots=True)
class Source:
    """The part of one document in one row of a batch, and the Kafka record that it came from."""

    start: int
    """Index of its first token among the row's ``sequence_length + 1``; x has all but the last, y all but the first."""
    stop: int
    """Index after its last token in the row."""
    topic: str
    """The raw topic."""
    partition: int
    offset: int
    """Offset of the record in that partition."""
    position: int
    """Index of the first token here among the document's tokens."""
    id: str | int | None
    fields: Mapping[str, Any]
    """The fields of the record that the stream carries."""
    block: int
    """The block of the partition in which these tokens are."""


def sources_of(reader: PartitionReader, block: int, view: int, length: int) -> list[Source]:
    """Return the sources of one view of a block, in the order of their tokens; padding has none."""
    begin = view * length
    found = []
    for piece in reader.documents(block):
        start, stop = max(piece.start, begin), min(piece.stop, begin + length + 1)
        if start < stop and piece.position != PADDING:
            found.append(
                Source(
                    start=start - begin,
                    stop=stop - begin,
                    topic=str(reader.info.values["raw_topic"]),
                    partition=reader.partition,
                    offset=piece.offset,
                    position=piece.position + start - piece.start,
                    id=piece.id,
                    fields=piece.fields,
                    block=block,
                )
            )
    return found


def places_of(samples: Samples) -> list[tuple[int, int, int]]:
    """Return partition, block and view of each sample."""
    return list(zip(*(column.tolist() for column in samples), strict=True))


@dataclass(frozen=True, slots=True)
class Use:
    """A place in the sequence at which a sample comes."""

    sample: int
    passed: int
    era: int
    position: int
    """Index in the era's order in this pass, from 0."""
    step: int | None
    """The step that took it; None: as of the state, none has yet."""
    row: int | None
    """Its row in that step's global batch: rank r of batches of b has the rows from r * b on."""


@dataclass(frozen=True, slots=True)
class TracedSample:
    """A sample, and what it was made of."""

    use: Use
    partition: int
    block: int
    view: int
    sources: list[Source]


@dataclass(frozen=True, slots=True)
class TracedView:
    """One view of a block, and where it comes in the sequence: once in each pass, as far as these are known."""

    partition: int
    block: int
    view: int
    era: int | None
    """The era that holds the block; None: none yet."""
    uses: list[Use]
    """Empty where no era holds the block yet, or the run does not take that era."""
    sources: list[Source]


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """A record, and the views that hold tokens of it."""

    topic: str
    partition: int
    offset: int
    held: tuple[int, int] | None
    """The first and the last record of which the store holds tokens in this partition; None: it holds none."""
    views: list[TracedView]
    """Each with the sources of this record only."""
    may_wait: bool = False
    """Whether its tokens may be in an open block that the store does not have yet."""

    @property
    def verdict(self) -> str:
        """What is known of the record, for people."""
        if any(view.uses for view in self.views):
            return "it is in the sequence"
        if self.views:
            known = any(view.era is not None for view in self.views)
            return "its blocks are in eras that this run does not take" if known else "no era holds its blocks yet"
        if self.held is None:
            return "the store holds no block of this partition"
        return self._without_tokens(*self.held)

    def _without_tokens(self, first: int, last: int) -> str:
        if self.offset > last:
            return f"the store's blocks end with offset {last}: it is not milled or stored yet, or has no tokens"
        if self.may_wait:
            return "it waits in an open block, or has no tokens"
        if self.offset < first:
            return f"the store's blocks begin with offset {first}: it was retired, or has no tokens"
        return "it yielded no tokens: filtered, dead-lettered, of another split, a tombstone, or no record"


class Tracer:
    """Traces the samples of one run in one store."""

    def __init__(self, store: StorePath, position: Position) -> None:
        """Open the stream that a run's state names.

        Raises StoreError where the store holds no such stream; InputError where it has other settings or text;
        DamagedError where the files are damaged.
        """
        sequence = position.sequence
        self._store = store_directory(store)
        self._info = read_stream(self._store, sequence.stream)
        if self._info.fingerprint.hex() != sequence.fingerprint:
            raise InputError(
                f"the state is of a stream {sequence.stream} with the fingerprint {sequence.fingerprint}, the one in "
                f"{self._store} has {self._info.fingerprint.hex()}: give the store that the run read, or a copy of it"
            )
        self.topic = str(self._info.values["raw_topic"])
        self.position = position
        self.views = count_views(self._info, sequence.sequence_length)
        self._age = most_age(self._info)
        self._length = sequence.sequence_length
        self._samples = TrainableSamples(self._store, self._info, sequence, self.views, check=False, on_damage="refuse")
        self.doubt = self._samples.content.doubt(position)
        """Why it is not known whether the run read this content, for people; None: it did."""

    def step(self, number: int) -> Iterator[TracedSample]:
        """Yield a step's samples as in the global batch; raises InputError where it was not made, or is not there."""
        samples = self.position.samples_of(number)
        for first in range(samples.start, samples.stop, _AT_ONCE):
            yield from self._traced(range(first, min(first + _AT_ONCE, samples.stop)))

    def sample(self, number: int) -> TracedSample:
        """Return a sample, also one that no step has taken yet; raises InputError where it is not there."""
        if number < 0:
            raise InputError(f"sample {number}: give a number from 0 on")
        return next(self._traced(range(number, number + 1)))

    def block(self, partition: int, number: int) -> list[TracedView]:
        """Return the views of a block; raises InputError where the store does not hold it."""
        reader = self._reader(partition)
        if not reader.first_block <= number < reader.blocks:
            raise InputError(
                f"{self._store} holds blocks {reader.first_block} to {reader.blocks - 1} of partition {partition}, not "
                f"{number}: give one of these"
            )
        return self._views_of(reader, number)

    def record(self, partition: int, offset: int) -> TracedRecord:
        """Return where the tokens of a record are, if any; raises InputError where there is no such partition."""
        reader = self._reader(partition)
        blocks = range(reader.first_block, reader.blocks)
        oldest = int(reader.pieces(blocks.start)["offset"][0]) if blocks else 0
        held = (oldest, self._last(reader, blocks.stop - 1)) if blocks else None
        views: list[TracedView] = []
        first = bisect_left(blocks, offset, key=partial(self._last, reader))
        for block in blocks[first:]:
            pieces = reader.pieces(block)
            first_offset, last_offset = pieces["offset"][0], pieces["offset"][-1]
            # Without an age, offsets never fall; with one, a block's first piece is not above the record.
            if first_offset > offset if self._age is None else last_offset > offset + self._age + 1:
                break
            mine = (pieces["offset"] == offset) & (pieces["position"] != PADDING)
            if mine.any():
                views += self._views_of(reader, block, offset)
        waits = self._age is not None and (held is None or held[1] <= offset + self._age)
        return TracedRecord(self.topic, partition, offset, held, views, may_wait=waits)

    def documents(self, wanted: str) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Read all document tables; yield, for each block, how many are read of how many, and records of that id.

        These are (partition, offset). Ids are compared as text: ``7`` finds the id 7 and the id "7".
        """
        readers = [self._reader(number) for number in partitions_in(self._store, self._info.name)]
        total = sum(reader.blocks - reader.first_block for reader in readers)
        done = 0
        for reader in readers:
            seen: set[int] = set()  # with `fit`, blocks of other records may stand between those of one
            for block in range(reader.first_block, reader.blocks):
                named = [piece for piece in reader.documents(block) if piece.id is not None]
                offsets = [piece.offset for piece in named if str(piece.id) == wanted]
                new = [offset for offset in dict.fromkeys(offsets) if offset not in seen]
                seen.update(new)
                done += 1
                yield done, total, [(reader.partition, offset) for offset in new]

    def _traced(self, samples: range) -> Iterator[TracedSample]:
        numbers = np.array([self.position.in_blocks(sample, self.views) for sample in samples], np.int64)
        first, wanted = int(numbers.min()), int(numbers.max() - numbers.min()) + 1
        if self._samples.ready(first, wanted) < wanted:
            total = self._samples.places.total()
            what = "the sequence ends before it" if total is not None and samples.stop > total else "it is not here yet"
            raise InputError(
                f"sample {samples.stop - 1} of {self._info.name} is not in {self._store}: {what}; give a smaller "
                f"number, or wait for its era and blocks; the store has {self._samples.eras.eras} eras"
            )
        located = join(order.samples_of(items) for order, items in self._samples.items_in_any_order(numbers))
        for sample, number, (partition, block, view) in zip(samples, numbers.tolist(), places_of(located), strict=True):
            place = self._samples.places.place(number)
            if place is None:  # `ready` has just found it
                raise InputError(f"sample {sample} of {self._info.name} is gone from {self._store}: try again")
            era, passed, first = place
            sources = sources_of(self._reader(partition), block, view, self._length)
            yield TracedSample(self._use(sample, passed, era, number - first), partition, block, view, sources)

    def _views_of(self, reader: PartitionReader, block: int, offset: int | None = None) -> list[TracedView]:
        """Return the views of a block, with an ``offset`` those with tokens of that record."""
        partition = reader.partition
        number = self._era_of(partition, block)
        found = []
        for view in range(self.views):
            sources = sources_of(reader, block, view, self._length)
            if offset is not None:
                sources = [source for source in sources if source.offset == offset]
                if not sources:
                    continue
            uses = self._uses(number, partition, block, view) if number is not None else []
            found.append(TracedView(partition, block, view, number, uses, sources))
        return found

    def _uses(self, number: int, partition: int, block: int, view: int) -> list[Use]:
        era = self._samples.eras.era(number)
        uses = []
        for passed, first in enumerate(self._samples.places.first_samples(number)):
            position = self._samples.order(era, passed).position_of(partition, block, view)
            sample = self.position.from_blocks(first + position, self.views)
            uses.append(self._use(sample, passed, number, position))
        return uses

    def _use(self, sample: int, passed: int, era: int, position: int) -> Use:
        step, row = self.position.step_of(sample) or (None, None)
        return Use(sample, passed, era, position, step, row)

    def _era_of(self, partition: int, block: int) -> int | None:
        """Return the era that holds a block; None: none yet."""
        eras = self._samples.eras

        def stop(number: int) -> int:
            ranges = eras.era(number).ranges
            return ranges[partition].stop if partition < len(ranges) else 0

        found = bisect_left(range(eras.eras), block + 1, key=stop)
        return found if found < eras.eras else None

    def _reader(self, partition: int) -> PartitionReader:
        there = partitions_in(self._store, self._info.name)
        if partition not in self._samples.readers and partition not in there:
            raise InputError(f"{self._store} has the partitions {there} of {self._info.name}, not {partition}")
        return self._samples.reader(partition)

    @staticmethod
    def _last(reader: PartitionReader, block: int) -> int:
        return int(reader.pieces(block)["offset"][-1])


class TracedPart(NamedTuple):
    """A sample of a mixture."""

    name: str
    traced: TracedSample
    """What it was made of; its step and row are the mixture's, its sample and era the stream's own."""


def is_mixture(state: Any) -> bool:
    """Whether a state is one of a `Mixture`."""
    return isinstance(state, Mapping) and "mixture" in state


def part_of(state: Mapping[str, Any], name: str) -> Position:
    """Return where a mixture's stream stands, whose steps are its samples; raises InputError where there is none."""
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
            StoreError, DamagedError: the store lacks a stream, or the files are damaged.
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
        """Yield a step's samples as in the global batch; raises InputError where it was not made, or is not there."""
        position = replace(next(iter(self._positions.values())), sample=self._sample, ranges=tuple(self._ranges))
        samples = position.samples_of(number)
        if self._whole_steps:
            (name,) = (name for name, _ in self._drawn(number, number + 1))
            first = sum(
                part.global_batch * sum(one == name for one, _ in self._drawn(part.first_step, stop))
                for part, stop in position.made(number)
            )
            drawn = [(name, first + row) for row in range(len(samples))]
        else:
            drawn = self._drawn(samples.start, samples.stop)
            first = int(rotation(np.array([number]), len(samples))[0]) if self._rotates else 0
            drawn = drawn[first:] + drawn[:first]
        for row, (name, own) in enumerate(drawn):
            traced = self._tracers[name].sample(own)
            yield TracedPart(name, replace(traced, use=replace(traced.use, step=number, row=row)))

    def _drawn(self, first: int, stop: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        while first < stop:
            course = self._schedule.before(first).course_at(first)
            end = min([stop, *(change.known for change in self._schedule.changes if change.known > first)])
            streams, numbers = course.draw(np.arange(first, end), end)
            names = course.schedule.names
            found += [(names[stream], own) for stream, own in zip(streams.tolist(), numbers.tolist(), strict=True)]
            first = end
        return found
