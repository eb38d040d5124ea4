"""The one sequence of samples that all ranks share: arithmetic on sample numbers and eras, no I/O.

A sample is a view of a block: ``sequence_length + 1`` tokens, of which x and y overlap. A block of ``block_tokens`` has
``(block_tokens - 1) / sequence_length`` views, each beginning with the last token of the one before. The sequence goes
through the eras in their order, once in each pass, and inside an era over its samples (blocks by partition and number,
each with its views) in the order of a permutation of (seed, pass, era). Views are permuted like blocks: several views
of one block in one batch would train on the same document.

A run's state (`Position`) describes the sequence as a whole, so it is equal on every rank, and any number of ranks can
go on from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tokenmill.eras import Era, Permutation
from tokenmill.errors import InputError
from tokenmill.store import StreamInfo
from tokenmill.wire.chain import HASH_BYTES

Numbers = npt.NDArray[np.int64]

_FORMAT: Final = 1
_STORED: Final = 1 << 20
"""Most samples of an era whose order is computed at once and kept, in 8 MiB; parts of larger eras are large enough."""


class Samples(NamedTuple):
    """The places of samples: int64 arrays, ``[samples]`` each."""

    partitions: Numbers
    blocks: Numbers
    views: Numbers


def join(parts: Iterable[Samples]) -> Samples:
    """Concatenate samples."""
    found = list(parts) or [Samples(*(np.empty(0, np.int64) for _ in Samples._fields))]
    return found[0] if len(found) == 1 else Samples(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


class EraOrder:
    """The samples of one era in the order of one pass."""

    def __init__(
        self, era: Era, *, views: int, shuffle: bool, seed: int, passed: int, whole_blocks: bool = False
    ) -> None:
        """Prepare the order of an era in a pass, without ``shuffle`` by partition and number, whatever its size.

        With ``whole_blocks``, the views of a block stay together, in their order.
        """
        self.era = era.number
        self.samples = era.blocks * views
        self.blocks = era.blocks
        self.views = views
        self._together = views if whole_blocks else 1
        """Samples that are permuted as one."""
        units = self.samples // self._together
        self._order = Permutation(units, seed=seed, passed=passed, era=era.number) if shuffle else None
        parts = [(partition, part) for partition, part in enumerate(era.ranges) if part.blocks]
        self.ranges = [(partition, part.first, part.stop) for partition, part in parts]
        """The blocks ``[first, stop)`` of each partition that has some, in the order in which items number them."""

    def items(self, positions: Numbers) -> Numbers:
        """Return the items at these positions, in ``range(samples)``: samples numbered by partition, block and view."""
        if self._order is None:
            return positions
        units, within = np.divmod(positions, self._together) if self._together > 1 else (positions, 0)
        found = self._whole[units] if len(self._order) <= _STORED else self._order(units)
        return found if self._together == 1 else found * self._together + within

    def samples_of(self, items: Numbers) -> Samples:
        """Return the samples that have these item numbers."""
        blocks, views = (items, np.zeros_like(items)) if self.views == 1 else np.divmod(items, self.views)
        partitions, starts, shifts = self._parts
        parts = np.searchsorted(starts, blocks, side="right") - 1
        return Samples(partitions[parts], blocks + shifts[parts], views)

    def position_of(self, partition: int, block: int, view: int) -> int:
        """Return the position of a sample of the era in this order: the inverse of `items` and `samples_of`."""
        partitions, _, shifts = self._parts
        part = int(np.searchsorted(partitions, partition))
        item = (block - int(shifts[part])) * self.views + view
        if self._order is None:
            return item
        unit, within = divmod(item, self._together)
        return int(self._order.inverse(np.array([unit]))[0]) * self._together + within

    @cached_property
    def _parts(self) -> tuple[Numbers, Numbers, Numbers]:
        """Per range: its partition, the index of its first block in the era, and a block's number minus its index."""
        partitions, firsts, stops = np.array(self.ranges, np.int64).reshape(-1, 3).T
        starts = np.cumsum(stops - firsts) - (stops - firsts)
        return partitions, starts, firsts - starts

    @cached_property
    def _whole(self) -> Numbers:
        return self._order(np.arange(len(self._order))) if self._order is not None else np.arange(self.samples)


@dataclass(frozen=True, slots=True)
class SegmentOrder:
    """Which samples come when where blocks are read view by view: a step takes one view of each of its blocks.

    A run's samples count what is delivered: a global batch of views 0, one of views 1 of the same blocks, and so on.
    `numbers` are those of an order that keeps the views of each block together (`EraOrder`).
    """

    base: int
    """The number of the sample with which steps of this size began; a multiple of ``views``."""
    global_batch: int
    """Samples of all ranks in one step: blocks that are read side by side."""
    views: int

    @property
    def group(self) -> int:
        """Samples of blocks that are read side by side."""
        return self.global_batch * self.views

    def start(self, sample: int) -> int:
        """Return with which sample the blocks of this sample begin."""
        return sample - (sample - self.base) % self.group

    def end(self, total: int) -> int:
        """Return how many of ``total`` samples are in whole groups."""
        return max(self.start(total), self.base)

    def numbers(self, samples: Numbers) -> Numbers:
        """Return where these samples are in the order that keeps blocks together."""
        groups, within = np.divmod(samples - self.base, self.group)
        views, blocks = np.divmod(within, self.global_batch)
        return self.base + (groups * self.global_batch + blocks) * self.views + views

    def samples(self, numbers: Numbers) -> Numbers:
        """Return the samples that have these numbers there: the inverse of `numbers`."""
        blocks, views = np.divmod(numbers - self.base, self.views)
        groups, blocks = np.divmod(blocks, self.global_batch)
        return self.base + (groups * self.views + views) * self.global_batch + blocks


@dataclass(frozen=True, slots=True)
class Ranks:
    """How the samples of each step are divided among processes."""

    batch_size: int
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    """The number of this process among those that read for this rank, from 0: they take its steps in turns."""
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise InputError(f"worker {self.worker} of {self.workers}: give a number from 0 to below theirs")
        if self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise InputError(
                f"batch_size {self.batch_size}, rank {self.rank}, world_size {self.world_size}: give a batch_size "
                "above 0 and a rank from 0 to below world_size"
            )

    @property
    def global_batch(self) -> int:
        """Samples of all ranks in one step."""
        return self.batch_size * self.world_size

    @property
    def turn(self) -> int:
        """Samples of all ranks in one step of each worker."""
        return self.global_batch * self.workers

    def steps_in(self, samples: int) -> int:
        """Return how many steps of this process are complete with the first ``samples`` samples."""
        return max(samples // self.global_batch - self.worker + self.workers - 1, 0) // self.workers

    def samples(self, first: int, steps: int, rotated_from: int | None = None) -> Numbers:
        """Return the numbers of this process's samples in the next ``steps`` of its steps, ``[steps * batch_size]``.

        The first turn of the workers begins with sample ``first``. Together, ranks and workers take each sample once.
        With the number of that turn's first step, the rows of each step are rotated (`rotation`), and do not ascend.
        """
        turns = self.worker + self.workers * np.arange(steps)
        places = self.rank * self.batch_size + np.arange(self.batch_size)
        if rotated_from is not None:
            places = (places + rotation(rotated_from + turns, self.global_batch)[:, None]) % self.global_batch
        return (first + self.global_batch * turns[:, None] + places).reshape(-1)

    def samples_of_last(self, first: int, samples: int) -> Numbers:
        """Return the numbers of this rank's samples in a step that has so few, from ``first`` on; none, perhaps."""
        begin, end = (edge * samples // self.world_size for edge in (self.rank, self.rank + 1))
        return np.arange(first + begin, first + end)


def rotation(steps: Numbers, global_batch: int) -> Numbers:
    """Return how far each step's samples are moved on: its row j has its sample ``(j + rotation) % global_batch``.

    Multiples of the golden ratio: each row meets all places of a step equally often. Neighbours stay together.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)  # the fractional part of the golden ratio, of 2**64
    fractions = (steps.astype(np.uint64) * golden) >> np.uint64(32)
    return (fractions * np.uint64(global_batch) >> np.uint64(32)).astype(np.int64) % global_batch


def count_views(info: StreamInfo, sequence_length: int) -> int:
    """Return how many samples of a length a block has; raises InputError where it does not divide the block's."""
    whole = info.block_tokens - 1
    if sequence_length < 1 or whole % sequence_length:
        fitting = [str(length) for length in range(whole, 0, -1) if whole % length == 0][:4]
        raise InputError(
            f"sequence_length is {sequence_length}, but blocks of {info.name} have {info.block_tokens} tokens, for "
            f"sequences of {whole}: give {' or '.join(fitting)}, or mill a stream of another length"
        )
    return whole // sequence_length


@dataclass(frozen=True, slots=True)
class SequenceId:
    """Everything that decides which sample has which number."""

    stream: str
    fingerprint: str
    """32 hexadecimal digits."""
    sequence_length: int
    seed: int
    shuffle: bool
    eras: tuple[int, int | None]
    """The first era and the one after the last; None: up to the end marker."""
    passes: int
    in_order: bool = False
    """Whether blocks are permuted as a whole, and the views of a step's blocks follow in the steps after it."""


_NAMES: Final = tuple(field.name for field in fields(SequenceId))
_UNSAID: Final = "in_order"
"""A name that states omit where it is false, as those of older versions do."""


class Content(NamedTuple):
    """The pin of the samples that a run has taken: an era, whose hash covers all eras up to it and their blocks."""

    era: int
    hash: str
    """The era's hash, 32 hexadecimal digits."""

    def __str__(self) -> str:
        return f"era {self.era} hash {self.hash}"


class StepRange(NamedTuple):
    """Steps that took the same number of samples, up to the next range."""

    first_step: int
    first_sample: int
    global_batch: int
    """Samples of all ranks in each of its steps."""


@dataclass(frozen=True, slots=True)
class Position:
    """How many samples of a sequence were delivered, in which steps."""

    sequence: SequenceId
    sample: int
    ranges: tuple[StepRange, ...]
    """The steps, in order; the last range goes on without an end. Those that begin behind the next step are planned."""
    content: Content | None = None
    """The pin: an era that the run has used, as a rule the last one. None: it used none, or that is not known."""

    @classmethod
    def beginning(cls, sequence: SequenceId, global_batch: int) -> Self:
        """Return the first position of a run whose steps take ``global_batch`` samples."""
        return cls(sequence, 0, (StepRange(0, 0, global_batch),))

    @property
    def step(self) -> int:
        """The number of the next step."""
        last = self._range_of(self.sample)
        return last.first_step + (self.sample - last.first_sample) // last.global_batch

    @property
    def unpinned(self) -> bool:
        """Whether the run took samples and its state does not say of which content, as old states do not."""
        return self.sample > 0 and self.content is None

    def after(self, steps: int) -> "Position":
        """Return the position of the run ``steps`` steps later."""
        if len(self.ranges) == 1 or self.sample >= self.ranges[-1].first_sample:
            return replace(self, sample=self.sample + steps * self.ranges[-1].global_batch)
        return replace(self, sample=self.before(self.step + steps).sample)

    def needed(self, views: int) -> int:
        """Return the first sample that the rest of the run needs: in order, of the blocks that are gone through."""
        segments = self.segments(views)
        return self.sample if segments is None else segments.start(self.sample)

    def in_blocks(self, sample: int, views: int) -> int:
        """Return the place of a sample where the views of each block are counted together, as eras' orders do."""
        return int(self._segments(sample, views).numbers(np.array([sample]))[0])

    def from_blocks(self, place: int, views: int) -> int:
        """Return the sample at such a place: the inverse of `in_blocks`."""
        return int(self._segments(place, views).samples(np.array([place]))[0])

    def segments(self, views: int) -> SegmentOrder | None:
        """Return what comes when from here on, where samples are in order; None: they are not."""
        return self._segments(self.sample, views) if self.sequence.in_order else None

    def end(self, total: int, views: int) -> int:
        """Return the sample at which steps end where there are ``total``: in order, the last blocks are whole ones."""
        segments = self.segments(views)
        return total if segments is None else segments.end(total)

    def _segments(self, sample: int, views: int) -> SegmentOrder:
        """Return what comes when at a sample; where views are permuted like blocks, all numbers stay what they are."""
        part = self._range_of(sample)
        return SegmentOrder(part.first_sample, part.global_batch, views if self.sequence.in_order else 1)

    def before(self, step: int) -> "Position":
        """Return where the run stands when this step is the next one: one that was made, or one that comes."""
        kept = tuple(part for part in self.ranges if part.first_step <= step)
        last = kept[-1]
        return replace(self, sample=last.first_sample + (step - last.first_step) * last.global_batch, ranges=kept)

    def made(self, step: int) -> list[tuple[StepRange, int]]:
        """Return the ranges of the steps before one, and before which step each of them ends."""
        parts = [part for part in self.ranges if part.first_step < step]
        return list(zip(parts, [*(part.first_step for part in parts[1:]), step], strict=False))  # of step 0: none

    def up_to(self, total: int | None) -> "Position":
        """Return the same position, or the end of a last step that took only what there was of ``total`` samples."""
        if total is None or self.sample <= total:
            return self
        begin = self.before(replace(self, sample=total).step)
        rest = total - begin.sample
        return replace(begin.with_batches_of(rest), sample=total) if rest else begin

    def with_plan(self, batches: Sequence[tuple[int, int]]) -> "Position":
        """Return the same for a run whose steps, from each number on, at first the next one's, take so many samples."""
        step = self.step
        now = [global_batch for first, global_batch in batches if first <= step][-1]
        position = self.with_batches_of(now)
        for first, global_batch in batches:
            if first > step:
                start = StepRange(first, position.before(first).sample, global_batch)
                position = replace(position, ranges=(*position.ranges, start))
        return position

    def _range_of(self, sample: int) -> StepRange:
        return [part for part in self.ranges if part.first_sample <= sample][-1]

    def with_batches_of(self, global_batch: int) -> "Position":
        """Return the same position for a run whose steps take ``global_batch`` samples from there on."""
        made = tuple(part for part in self.ranges if part.first_sample <= self.sample)
        if made != self.ranges:
            return replace(self, ranges=made).with_batches_of(global_batch)
        last = self.ranges[-1]
        if last.global_batch == global_batch:
            return self
        kept = self.ranges if last.first_sample < self.sample else self.ranges[:-1]
        if kept and kept[-1].global_batch == global_batch:  # a run between them made no step
            return replace(self, ranges=kept)
        return replace(self, ranges=(*kept, StepRange(self.step, self.sample, global_batch)))

    def samples_of(self, step: int) -> range:
        """Return the numbers of the samples of a step that was made; raises InputError where the step was not made."""
        if not 0 <= step < self.step:
            raise InputError(f"step {step} was not made as of this state, whose next step is {self.step}")
        found = [part for part in self.ranges if part.first_step <= step][-1]
        first = found.first_sample + (step - found.first_step) * found.global_batch
        return range(first, first + found.global_batch)

    def step_of(self, sample: int) -> tuple[int, int] | None:
        """Return the step that took a sample, and the sample's place in the global batch; None: no step took it."""
        if not 0 <= sample < self.sample:
            return None
        found = self._range_of(sample)
        steps, place = divmod(sample - found.first_sample, found.global_batch)
        return found.first_step + steps, place

    def to_dict(self) -> dict[str, Any]:
        """Return the state: a small dict of JSON types."""
        named = {name: getattr(self.sequence, name) for name in _NAMES if name != _UNSAID or self.sequence.in_order}
        return {
            "format": _FORMAT,
            **named,
            "eras": list(self.sequence.eras),
            "sample": self.sample,
            "ranges": [list(part) for part in self.ranges if part.first_sample <= self.sample],
            "content": None if self.content is None else list(self.content),  # DCP would split an object into entries
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], sequence: SequenceId) -> Self:
        """Return the position in a state; raises InputError where it is none, or not of this sequence.

        The number of passes may have changed, and with a single pass the last era: the samples keep their numbers.
        """
        saved = cls.read(state)
        found = saved.sequence
        wanted = asdict(sequence) | {"passes": found.passes}
        if found.passes == sequence.passes == 1 and found.eras[0] == sequence.eras[0]:
            wanted["eras"] = found.eras
        others = [name for name, value in asdict(found).items() if value != wanted[name]]
        if others:
            told = ", ".join(f"{name} {getattr(found, name)!r} (here {getattr(sequence, name)!r})" for name in others)
            raise InputError(
                f"the state is one of another sequence of samples: {told}. Open Batches as they were when it was "
                "saved, or begin at the beginning, without the state"
            )
        return replace(saved, sequence=sequence)

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Self:
        """Return the position in a state, in the sequence that it names: for tools; raises InputError if it is none."""
        try:
            if state["format"] != _FORMAT:
                raise InputError(
                    f"the state's format is {state['format']!r}: use the version of tokenmill that wrote it"
                )
            named = {name: state[name] for name in _NAMES if name != _UNSAID} | {_UNSAID: state.get(_UNSAID, False)}
            ranges = tuple(StepRange(*part) for part in state["ranges"])
            position = cls(_read_sequence(named), state["sample"], ranges, _read_content(state.get("content")))
            position.require_sound()
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"this is no state of Batches ({error!r}): give what state_dict() returned") from error
        return position

    def require_sound(self) -> None:
        """Raise ValueError where the numbers contradict each other."""
        numbers = [self.sample, *(number for part in self.ranges for number in part)]
        if not self.ranges or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("numbers are missing")
        ends = [*self.ranges[1:], StepRange(0, self.sample, 1)]
        for part, end in zip(self.ranges, ends, strict=True):
            if part.global_batch < 1 or end.first_sample < part.first_sample:
                raise ValueError("ranges overlap")
            if (end.first_sample - part.first_sample) % part.global_batch:
                raise ValueError("a step has a part of its samples")
            made = (end.first_sample - part.first_sample) // part.global_batch
            if end is not ends[-1] and end.first_step != part.first_step + made:
                raise ValueError("steps are missing")
        if self.ranges[0][:2] != (0, 0):
            raise ValueError("the first steps are missing")


def _read_sequence(named: Mapping[str, Any]) -> SequenceId:
    first, stop = named["eras"]
    found = SequenceId(**dict(named) | {"eras": (first, stop)})
    counts = [found.sequence_length, found.passes, first + 1, first + 1 if stop is None else stop - first]
    if not all(type(number) is int for number in [*counts, found.seed]) or min(counts) < 1:
        raise ValueError("the sequence's numbers are impossible")
    are_flags = type(found.shuffle) is type(found.in_order) is bool
    if not are_flags or not all(isinstance(text, str) for text in (found.stream, found.fingerprint)):
        raise TypeError("the sequence's names are impossible")
    return found


def _read_content(value: Any) -> Content | None:
    if value is None:  # an old state, or one of a run that took nothing
        return None
    era, found = value
    if type(era) is not int or era < 0 or len(bytes.fromhex(found)) != HASH_BYTES:
        raise ValueError("the content's era or hash is impossible")
    return Content(era, bytes.fromhex(found).hex())
