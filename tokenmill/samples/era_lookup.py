"""Which era holds a sample, and the pin of a run: an era's hash in its state, by which other content is recognised.

A fingerprint says how a stream was made, not of which text: two clusters with one recipe have streams of the same name
and fingerprint. The hash of an era covers its blocks and all eras before it. So the last era that a position has used
pins it, the same in every store: in the first pass the era of the sample before it, in later passes the sequence's last
era (the end marker, where that ends the sequence).
"""

import logging
from bisect import bisect_left
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from tokenmill.errors import InputError
from tokenmill.samples.position import Content, Position, SequenceId
from tokenmill.store import EraReader, StreamInfo, open_eras

_REMEMBERED: Final = 1 << 13
"""Eras whose pins are kept in memory, in 2 MiB: each batch that a loop reads ahead may end in an era of its own."""

UNPINNED: Final = (
    "a state does not say over which content it was saved (tokenmill was older): make sure that the store is the one "
    "that the run read, or a copy of it"
)
"""The warning about a position that is `Position.unpinned`."""

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
    """The pins of a sequence's positions in one store, and how far its eras reach; for several threads.

    Pins of what a run has just read are kept in memory, so a state for each batch reads no file.
    """

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
        """Return the passes before a sample's and when its era was closed, None if it has none; raises as `total`."""
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
            raise InputError(self._difference(position.sample, wanted, found))
        self._agreed = wanted
        return True

    def _difference(self, sample: int, wanted: Content, found: Content) -> str:
        where = f"{found}"
        if found.era != wanted.era:
            where = f"ends with {found}" if self._eras.ended else f"has its samples up to {sample} in {found}"
        return (
            f"the state is one over other content of {self._info.name} than {self._store} holds (state: {wanted}; "
            f"store: {where}). Streams with one recipe share name and fingerprint, whatever text they were made of: "
            "give the store that the run read, or a copy of it, or begin at the beginning, without the state"
        )

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
