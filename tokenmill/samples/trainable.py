"""Which samples of a sequence are in a store now, which blocks of it a checkpoint still needs, and the pin of a run.

A fingerprint says how a stream was made, not of which text: two clusters with one recipe have streams of the same name
and fingerprint. The hash of an era covers its blocks and all eras before it. So the last era that a position has used
pins it, the same in every store: in the first pass the era of the sample before it, in later passes the sequence's last
era (the end marker, where that ends the sequence). By it, other content is recognised.
"""

import itertools
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import numpy as np

from tokenmill.eras import Era
from tokenmill.errors import DamagedError, DifferenceError, InputError
from tokenmill.samples.sequence import Content, EraOrder, Numbers, Position, Samples, SequenceId, count_views, join
from tokenmill.store import EraReader, OnDamage, PartitionReader, Pieces, StreamInfo, open_eras
from tokenmill.store.layout import comparing, partition_directory
from tokenmill.untrusted import read_json_file

_REMEMBERED: Final = 1 << 13
"""Eras whose pins are kept in memory, in 2 MiB: each batch that a loop reads ahead may end in an era of its own."""

UNPINNED: Final = (
    "a state does not say over which content it was saved (tokenmill was older): make sure that the store is the one "
    "that the run read, or a copy of it"
)

log = logging.getLogger(__name__)


class EraPlace(NamedTuple):
    """An era in a pass of a sequence."""

    era: int
    passed: int
    start: int
    """The number of the era's first sample in this pass."""


class EraPlaces:
    """Finds the eras of samples, among the eras that the last ``refresh`` of ``eras`` found."""

    def __init__(self, eras: EraReader, sequence: SequenceId, views: int) -> None:
        """Use the eras of the sequence's stream; each block has ``views`` samples."""
        self.eras = eras
        self._sequence = sequence
        self._views = views

    def total(self) -> int | None:
        """Return how many samples the sequence has; None until its last era is there."""
        one = self.in_pass()
        return None if one is None else one * self._sequence.passes

    def in_pass(self) -> int | None:
        """Return how many samples each pass has; None until the last era is there."""
        first, stop = self._sequence.eras
        if stop is None or stop > self.eras.eras:
            if not self.eras.ended:
                return None
            stop = self.eras.eras
        return self.between(min(first, stop), stop)

    def last_era(self) -> int:
        """Return the number of the sequence's last known era, which may be the end marker; -1 if there is none."""
        stop = self._sequence.eras[1]
        return (self.eras.eras if stop is None else min(stop, self.eras.eras)) - 1

    def place(self, sample: int) -> EraPlace | None:
        """Return the era that holds a sample; None if no known era does."""
        first = self._sequence.eras[0]
        if sample < 0 or self.eras.eras <= first:
            return None
        one = self.in_pass()
        passed = 0
        if one is not None:
            if sample >= one * self._sequence.passes:
                return None
            passed = sample // one
        begin = passed * (one or 0)
        block = self.eras.blocks_before(first) + (sample - begin) // self._views
        if block >= self.eras.blocks:
            return None
        number = self.eras.find(block)
        return EraPlace(number, passed, begin + self.between(first, number))

    def first_samples(self, number: int) -> list[int]:
        """Return the number of an era's first sample in each pass, the first one alone until the last era is there."""
        first = self._sequence.eras[0]
        if not first <= number <= self.last_era():
            return []
        one = self.in_pass()
        within = self.between(first, number)
        return [within + passed * (one or 0) for passed in range(1 if one is None else self._sequence.passes)]

    def behind(self, sample: int) -> tuple[int, int]:
        """Return how many blocks, in how many eras, are known behind the one before a sample, in the sample's pass."""
        eras, (first, end) = self.eras, self._sequence.eras
        known = eras.eras - eras.ended
        stop = known if end is None else min(end, known)
        if stop <= first:
            return 0, 0
        whole = self.between(first, stop)
        within = sample - min(sample // whole, self._sequence.passes - 1) * whole
        block = eras.blocks_before(first) + within // self._views
        left = eras.blocks_before(stop) - block
        return (left, stop - eras.find(block)) if left > 0 else (0, 0)

    def between(self, first: int, stop: int) -> int:
        """Return the samples of the eras ``[first, stop)``."""
        return (self.eras.blocks_before(stop) - self.eras.blocks_before(first)) * self._views


class _Stretch(NamedTuple):
    """The pin of the positions in ``(start, stop]``."""

    start: int
    stop: int
    content: Content


class UsedContent:
    """The pins of a sequence's positions in one store, and how far its eras reach; for several threads."""

    def __init__(self, store: Path, info: StreamInfo, sequence: SequenceId, views: int) -> None:
        """Open the eras of the stream for this object alone; raises DamagedError where they are damaged."""
        self._store = store
        self._info = info
        self._eras = open_eras(store, info.name)
        self._places = EraPlaces(self._eras, sequence, views)
        self._lock = Lock()
        self._remembered: list[_Stretch] = []
        """Ascending, without overlap."""
        self._latest = _Stretch(0, 0, Content(0, ""))
        self._agreed: Content | None = None

    def total(self) -> int | None:
        """Return how many samples there are, None until the last era is in the store; raises DamagedError."""
        with self._lock:
            found = self._places.total()
            return self._places.total() if found is None and self._eras.refresh() else found

    def used(self, sample: int) -> tuple[int, int] | None:
        """Return the passes before a sample, and when its era was closed (ms); None without it. Raises as `total`."""
        with self._lock:
            self._eras.refresh()
            place = self._places.place(sample)
            return None if place is None else (place.passed, self._eras.era(place.era).closed)

    def behind(self, sample: int) -> tuple[int, int]:
        """Return the blocks and eras that are there behind a sample, in the pass of the next; raises as `total`."""
        with self._lock:
            self._eras.refresh()
            return self._places.behind(sample)

    def remember(self, place: EraPlace, samples: int) -> None:
        """Keep the pin of an era of ``samples`` samples that a run begins to read; raises DamagedError."""
        with self._lock:
            known = self._remembered
            if known and known[-1].start <= place.start < known[-1].stop:  # later passes are one stretch each
                return
            if known and place.start < known[-1].start:
                known.clear()
            if len(known) == _REMEMBERED:
                del known[: _REMEMBERED // 2]
            if place.era >= self._eras.eras or (place.passed and self._places.in_pass() is None):
                self._eras.refresh()
            known.append(self._stretch(place, samples))

    def pin(self, position: Position) -> Position:
        """Return the same position with its pin: where the store does not reach it, the last era that is known.

        The content of a state that does not agree with this store, or was not compared yet, is kept. Raises
        DamagedError.
        """
        if position.content is not None and position.content != self._agreed:
            return position
        content = self._content_at(position.sample)
        return position if content == position.content else replace(position, content=content)

    def accept(self, position: Position) -> Position:
        """Return where a run continues, with a warning where an old state has no pin; raises as `compare`."""
        if position.unpinned:
            log.warning("%s", UNPINNED)
        self.compare(position)
        return position

    def doubt(self, position: Position) -> str | None:
        """Return why it is unknown whether a position belongs to this content, None if it does; raises as `compare`."""
        if position.unpinned:
            return UNPINNED
        if not self.compare(position):
            return (
                f"the state was saved after {position.content}, which is not in {self._store} yet: whether the run "
                "read this content is known only when it is there"
            )
        return None

    def compare(self, position: Position) -> bool:
        """Return whether a position's content, if it has a pin, is this store's; False: that era is not there yet.

        Raises InputError where it is other content, DamagedError where the eras are damaged.
        """
        wanted = position.content
        if wanted is None or wanted == self._agreed:
            return True
        with self._lock:
            self._eras.refresh()
            if wanted.era < self._eras.eras:
                found = self._content_of(wanted.era)
            elif self._eras.ended:
                found = self._content_of(self._eras.eras - 1)
            else:  # eras of other sizes may reach the sample all the same
                place = self._places.place(position.sample - 1)
                if place is None:
                    return False
                found = self._content_of(place.era)
        if found != wanted:
            where = "ends with" if self._eras.ended else f"has its samples up to {position.sample} in"
            held = f"{found}" if found.era == wanted.era else f"{where} {found}"
            raise InputError(
                f"the state is one over other content of {self._info.name} than {self._store} holds (state: {wanted}; "
                f"store: {held}). Streams with one recipe share name and fingerprint, whatever text they were made of: "
                "give the store that the run read, or a copy of it, or begin at the beginning, without the state"
            )
        self._agreed = wanted
        return True

    def _content_at(self, sample: int) -> Content | None:
        """Return the pin of a position before a sample; None: nothing was used, or no era is known."""
        if not sample:
            return None
        latest = self._latest
        if latest.start < sample <= latest.stop:
            return latest.content
        with self._lock:
            index = bisect_left(self._remembered, sample, key=attrgetter("stop"))
            if index < len(self._remembered) and self._remembered[index].start < sample:
                latest = self._remembered[index]
            else:
                place = self._places.place(sample - 1)
                if place is None and self._eras.refresh():
                    place = self._places.place(sample - 1)
                if place is None:
                    last = self._places.last_era()
                    return self._content_of(last) if last >= 0 else None
                latest = self._stretch(place, self._places.between(place.era, place.era + 1))
            self._latest = latest
        return latest.content

    def _stretch(self, place: EraPlace, samples: int) -> _Stretch:
        """Return the pin of the positions in an era; in a later pass, of the whole pass."""
        if not place.passed:
            return _Stretch(place.start, place.start + samples, self._content_of(place.era))
        one = self._places.in_pass() or 0  # it is known, else no later pass could be
        return _Stretch(place.passed * one, (place.passed + 1) * one, self._content_of(self._places.last_era()))

    def _content_of(self, number: int) -> Content:
        return Content(number, self._eras.hash_of(number).hex())


@dataclass(slots=True)
class _Span:
    """The samples ``[start, stop)`` of the sequence: one era in one pass."""

    start: int
    stop: int
    number: int
    passed: int
    order: EraOrder


class TrainableSamples:
    """Finds samples by number: which era, block and view each is.

    Keeps only the eras of the samples that were asked for last, which bounds the memory. An era is trainable when its
    blocks are committed in the store and have the chain hashes that the era names. Then all eras before it are
    trainable, too, since each hash covers what precedes it, and stay so.
    """

    def __init__(
        self,
        store: Path,
        info: StreamInfo,
        sequence: SequenceId,
        views: int,
        *,
        check: bool,
        on_damage: OnDamage,
        whole: bool = False,
    ) -> None:
        """Open the eras of a stream; ``whole``: all samples of an era will be read, one after the other."""
        self.eras = open_eras(store, info.name)
        self.places = EraPlaces(self.eras, sequence, views)
        self.content = UsedContent(store, info, sequence, views)
        self.lock = RLock()
        """Held by who uses a reader: samples may be looked for by another thread than asks where others came from."""
        self.store = store
        self.info = info
        self.stream = info.name
        self.sequence = sequence
        self.views = views
        self.checks = check or on_damage == "skip"
        self._on_damage: OnDamage = on_damage
        self._whole = whole
        self.readers: dict[int, PartitionReader] = {}
        self.fetch: Callable[[EraReader, Sequence[int], Sequence[int], Sequence[int]], bool] | None = None
        """Of a cache: told which eras are read, come next, and have batches in use; says whether the first is there."""
        self._spans: deque[_Span] = deque()
        self._orders: WeakSet[EraOrder] = WeakSet()
        """Those of the samples that will be read, and of batches that somebody has and may ask for their documents."""
        self._trainable = -1
        """The highest era that is known to be trainable."""

    def reader(self, partition: int) -> PartitionReader:
        """Return the reader of a partition."""
        found = self.readers.get(partition)
        if found is None:
            directory = partition_directory(self.store, self.stream, partition)
            options: dict[str, Any] = {"check": self.checks, "on_damage": self._on_damage, "whole": self._whole}
            found = self.readers[partition] = PartitionReader(directory, self.info, partition, **options)
        return found

    def pieces_of(self, partition: int, blocks: Numbers) -> Pieces:
        """Return the pieces of blocks of a partition, in any thread; raises as `PartitionReader.pieces_of`."""
        with self.lock:
            return self.reader(partition).pieces_of(blocks)

    def ready(self, sample: int, wanted: int, least: int | None = None) -> int:
        """Return how many samples from ``sample`` on are trainable, at most ``wanted``.

        A cache has no more eras at once than ``least`` samples take, and the next one; None: than those wanted take.

        Raises InputError where the store holds their blocks no more, DifferenceError where it holds other ones than the
        eras name, DamagedError where the files are damaged.
        """
        before = len(self._spans)
        while self._spans and self._spans[0].stop <= sample:
            self._spans.popleft()
        if self._spans and sample < self._spans[0].start:
            self._spans.clear()
        if self._spans and len(self._spans) < before:
            self._claim(self._spans[-1].number, self._spans[-1].passed)  # the next one has room now
        reached = self._spans[-1].stop if self._spans else sample
        asked = wanted if least is None or self.fetch is None else min(wanted, least)
        while reached < sample + asked and (span := self._span_at(reached)) is not None:
            self._spans.append(span)
            reached = span.stop
        return min(reached - sample, wanted)

    def locate(self, samples: Numbers) -> Samples:
        """Return the places of samples. Their numbers must ascend, and `ready` must just have counted them."""
        return join(order.samples_of(items) for order, items in self.items(samples))

    def items(self, samples: Numbers) -> list[tuple[EraOrder, Numbers]]:
        """Return the same samples as item numbers in the order of each era."""
        found = []
        for span in self._spans:
            first, stop = np.searchsorted(samples, (span.start, span.stop)).tolist()
            if first < stop:
                found.append((span.order, span.order.items(samples[first:stop] - span.start)))
        return found

    def items_in_any_order(self, samples: Numbers) -> list[tuple[EraOrder, Numbers]]:
        """Return the same for numbers that need not ascend: consecutive ones of one era together."""
        spans = np.searchsorted([span.start for span in self._spans], samples, side="right") - 1
        bounds = np.flatnonzero(np.diff(spans, prepend=-1, append=-1)).tolist()
        found = []
        for start, stop in itertools.pairwise(bounds):
            span = self._spans[int(spans[start])]
            found.append((span.order, span.order.items(samples[start:stop] - span.start)))
        return found

    def next_era(self, sample: int) -> int:
        """Return the number of the era that holds a sample; where it is not known, that of the next era to come."""
        place = self.places.place(sample)
        return self.eras.eras if place is None else place.era

    def torn(self, era: int) -> DamagedError | None:
        """Return the error for what stands where an era or its blocks are missing; writers are done in a moment."""
        if era >= self.eras.eras:
            return self.eras.torn()
        with self.lock:
            short = (n for n, part in enumerate(self.eras.era(era).ranges) if self.reader(n).blocks < part.stop)
            return next((found for n in short if (found := self.reader(n).torn()) is not None), None)

    def lost(self, era: int) -> DamagedError | None:
        """Return the same where the end marker proves that all of it was written once, and it is not being copied."""
        torn = self.torn(era)
        if torn is None or not self.eras.is_complete():
            return None
        return DamagedError(
            f"era {era} of {self.stream} in {self.store}: {torn.what}",
            "The end of the stream is marked, so all of it was written once, and is damaged. "
            f"{torn.advice}; {comparing(self.store, self.stream)}",
        )

    def order(self, era: Era, passed: int) -> EraOrder:
        """Return the order of an era's samples in a pass."""
        sequence = self.sequence
        order = EraOrder(
            era,
            views=self.views,
            shuffle=sequence.shuffle,
            seed=sequence.seed,
            passed=passed,
            whole_blocks=sequence.in_order,
        )
        self._orders.add(order)
        return order

    def _span_at(self, sample: int) -> _Span | None:
        """Return the era of a sample if it is trainable; its first sample is the span's."""
        place = self._following(sample) or self.places.place(sample)
        if place is None and self.eras.refresh():
            place = self.places.place(sample)
        if place is None:
            return None
        number, passed, start = place
        if not self._claim(number, passed):
            return None
        era = self.eras.era(number)
        if number > self._trainable:
            with self.lock:
                if not self.is_trainable(era):
                    return None
            self._trainable = number
        order = self.order(era, passed)
        self.content.remember(place, order.samples)
        return _Span(start, start + order.samples, number, passed, order)

    def _claim(self, era: int, passed: int) -> bool:
        """Say that an era is read beside those of the spans; return whether it is there, as in every whole store."""
        if self.fetch is None:
            return True
        others, following = {span.number for span in self._spans} - {era}, []
        if len(others) == 1:
            pass  # at a border: two eras are enough
        elif era < self.places.last_era():
            following = [era + 1]
        elif self.places.in_pass() and passed + 1 < self.sequence.passes:
            following = [self.sequence.eras[0]]
        had = sorted({order.era for order in self._orders})
        if not self.fetch(self.eras, [era, *sorted(others)], following, had):
            return False
        with self.lock:  # they know segments that are not there any more, and not those that came
            self.readers.clear()
        return True

    def _following(self, sample: int) -> EraPlace | None:
        """Return what `place` does, without a search, if the sample is the first of the next era in the same pass."""
        if not self._spans or self._spans[-1].stop != sample:
            return None
        last, stop = self._spans[-1], self.sequence.eras[1]
        number = last.number + 1
        if number >= self.eras.eras - self.eras.ended or (stop is not None and number >= stop):
            return None
        return EraPlace(number, last.passed, sample)

    def is_trainable(self, era: Era) -> bool:
        """Return whether the blocks of an era are in the store; raises as `ready` does."""
        for partition, part in enumerate(era.ranges):
            if not part.blocks:
                continue
            reader = self.reader(partition)
            if not reader.reaches(part.stop):
                return False
            if part.first < reader.first_block:
                raise InputError(
                    f"era {era.number} of {self.stream} begins at block {part.first} of partition {partition}, but "
                    f"{self.store} begins at block {reader.first_block}: its older segments were retired. Ask for "
                    "later eras or steps, or read a store that still holds them"
                )
            try:
                agrees = reader.has_chain_before(part.stop, part.after)
            except DamagedError:
                if self._on_damage == "refuse":
                    raise
                continue  # the blocks that can be read are
            if not agrees:
                raise DifferenceError(
                    f"era {era.number} of {self.stream} names other blocks than {self.store} holds in "
                    f"partition {partition} before block {part.stop}: {comparing(self.store, self.stream)}; make "
                    "the store again, or read another one"
                )
        return True


def read_state(file: Path) -> Position:
    """Return the position of a state that a trainer wrote into a file as JSON; raises InputError if there is none."""
    state = read_any_state(file)
    try:
        return Position.read(state)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def read_any_state(file: Path) -> Any:
    """Return what a trainer wrote into a file as JSON; raises InputError where the file is missing, or no JSON."""
    advice = "name a file that holds, as JSON, what state_dict() of Batches returned, and nothing else"
    try:
        return read_json_file(file)
    except (OSError, ValueError, DamagedError) as error:
        raise InputError(f"{file} cannot be read as a state ({error}): {advice}") from error


def first_needed(store: Path, info: StreamInfo, positions: Iterable[Position]) -> list[int]:
    """Return, for each partition, the first block that any of the positions needs; of partitions beyond, all.

    A position needs the whole era of its next sample, because an era is shuffled as a whole, and all later eras; while
    passes are left after the current one, all of the sequence's eras. Where the era is not known yet, or the sequence
    is at its end, it needs the blocks after the last era that it has used.

    Raises:
        InputError: a position is one in another stream, or in one of that name with other settings or text.
        DamagedError: the store's eras are damaged.
    """
    every = [_needed(store, info, position) for position in positions]
    shortest = min((len(needed) for needed in every), default=0)
    return [min(needed[partition] for needed in every) for partition in range(shortest)]


def _needed(store: Path, info: StreamInfo, position: Position) -> list[int]:
    sequence = position.sequence
    found, wanted = (sequence.stream, sequence.fingerprint), (info.name, info.fingerprint.hex())
    if found != wanted:
        raise InputError(
            f"the state is one of stream {found[0]!r} (fingerprint {found[1]}), and this is {wanted[0]!r} "
            f"({wanted[1]}): name a state of a run over this stream and store"
        )
    views = count_views(info, sequence.sequence_length)
    samples = TrainableSamples(store, info, sequence, views, check=False, on_damage="refuse")
    samples.content.compare(position)
    eras, total = samples.eras, samples.places.total()
    first = position.needed(views)
    passed = first * sequence.passes // total if total else 0
    if passed < sequence.passes - 1:
        number = sequence.eras[0]
    elif total is not None and position.sample >= total:
        number = eras.eras if sequence.eras[1] is None else sequence.eras[1]
    else:
        number = samples.next_era(first)
    if number < eras.eras:
        return [part.first for part in eras.era(number).ranges]
    return [part.stop for part in eras.era(eras.eras - 1).ranges] if eras.eras else []
