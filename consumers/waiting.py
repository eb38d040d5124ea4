"""What a loop has of a stream that it opened: whether its files are there, what it waits for, and its eras."""

import logging
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenmill.bucket.cache import store_folder
from tokenmill.eras import Era, EraRange
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.samples.sequence import Content, SequenceId
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import EraReader, StreamInfo, open_eras, read_stream
from tokenmill.store.layout import BUCKET_FILE, STREAM_FILE, comparing, is_packed, stream_directory, unreadable

from . import arguments
from .text import HasTokenizer, StoredTokenizer

_SAY_AFTER: Final = 5.0
"""Seconds of waiting until it is reported, the first wait at once: a loop that has caught up waits for each era."""
_SAY_EVERY: Final = 60.0

log = logging.getLogger(__name__)


class ReachableStream:
    """A context in which streams that were opened are read; re-entrant and cheap."""

    def __init__(self, *streams: tuple[Path, str]) -> None:
        """Name streams that are there, each by its store and its name."""
        self.streams = streams

    def require(self) -> None:
        """Raise StoreError where a stream is not there any more, DiskError where it may not, or cannot, be read."""
        for store, stream in self.streams:
            try:
                os.stat(stream_directory(store, stream) / STREAM_FILE)  # noqa: PTH116 - nothing else of it is wanted
            except (FileNotFoundError, NotADirectoryError):
                raise StoreError(
                    f"the store {store} no longer holds the stream {stream!r}: it was deleted or moved, or its disk is "
                    "not mounted. Bring it back, or open another copy of the store; a saved state goes on there. What "
                    "is the cache of a bucket is fetched again: start the run again"
                ) from None
            except OSError as error:
                raise unreadable(error.filename or self.streams[0][0], error) from error

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise StoreError where the stream went away, DiskError where the system refuses; others say what is wrong."""
        if isinstance(error, OSError | DamagedError):
            self.require()
        if isinstance(error, OSError):
            raise unreadable(error.filename or self.streams[0][0], error) from error


class Awaited(NamedTuple):
    """What is not there yet."""

    what: str
    """For messages, with what to do."""
    damage: DamagedError | None = None
    """What it is unless it comes in a moment; None: it may come at any time."""


def awaited_era(samples: TrainableSamples, number: int) -> Awaited:
    """Return what is missing where an era is waited for, and what to do."""
    torn = samples.torn(number)
    if torn is None:
        return Awaited(_missing(samples, number))
    place = f"era {number} of {samples.stream} in {samples.store}"
    told = f"{place}: {torn.what}; unless something writes or copies there, it is damaged ({torn.advice})"
    return Awaited(told, samples.lost(number))


def _missing(samples: TrainableSamples, number: int) -> str:
    eras, store, stream = samples.eras, samples.store, samples.stream
    place = f"era {number} of {stream} in {store}"
    if samples.fetch is not None:
        return (
            f"{place}, which comes from a bucket: see what the log of the process that fetches on this host says of it"
        )
    if number >= eras.eras and (eras.ahead or (eras.is_complete() and not eras.ended)):
        has, lacks = ("eras.index", "eras.jsonl") if eras.ahead else ("eras.jsonl", "eras.index")
        return (
            f"{place}: {has} has it and {lacks} does not, as while a store is copied; copy both again "
            f"({comparing(store, stream)})"
        )
    if eras.ended and number < eras.eras:
        return (
            f"the blocks of {place}: the end of the stream is marked, so they were written once, if not here yet; see "
            f"whether a copy is still at work ({comparing(store, stream)})"
        )
    if is_packed(store, stream):
        return (
            f"{place}: see whether `tokenmill pack` still runs, and else call the same command again (--flush for the "
            "rest of its tokens, --end where no more will come), name eras that are there"
        )
    if not eras.eras:
        running = "check that mill and segment worker run; a store that is a copy needs eras.jsonl and eras.index, too"
        bucket = f"it is a bucket, so open it as {store.as_uri()}, with a cache"
        return f"the first era of {stream} in {store}: {bucket if (store / BUCKET_FILE).exists() else running}"
    return (
        f"{place}: check that mill and segment worker run and that text flows, close the stream (`tokenmill close`), "
        "name eras that are there"
    )


class StoreWait:
    """How long a reader has waited since it got something."""

    def __init__(self, timeout: float | None, poll_seconds: float) -> None:
        self.waited_seconds = 0.0
        self._timeout = timeout
        self._poll_seconds = poll_seconds
        self._since: float | None = None
        self._said = 0.0
        self._is_new = True
        self._is_judged = False
        """Whether this wait has been going on for long enough to tell damage from what a writer is at."""

    def end(self) -> None:
        """Note that something came."""
        self._since = None

    def wait(self, look: Callable[[], Awaited]) -> None:
        """Sleep until the next look, or the timeout if that is sooner; ``look`` says what is waited for.

        Raises StoreError where the timeout is over, with one of 0 at once; DamagedError where what is missing still is
        damaged after a while.
        """
        begun = time.monotonic()
        if self._since is None:
            self._since = begun
            self._said = begun - _SAY_EVERY + (0.0 if self._is_new else _SAY_AFTER)
            self._is_new, self._is_judged = False, False
        waited = begun - self._since
        left = math.inf if self._timeout is None else self._timeout - waited
        says, judges = begun - self._said >= _SAY_EVERY, waited >= _SAY_AFTER and not self._is_judged
        if left <= 0 or says or judges:
            awaited = look()
            self._is_judged = waited >= _SAY_AFTER
            if awaited.damage is not None and self._is_judged:
                raise awaited.damage
            if left <= 0:
                passed = f"nothing came within {self._timeout} seconds of waiting for"
                raise StoreError(f"{passed} {awaited.what}, or wait longer (timeout)")
            if says:
                if waited:
                    log.warning("waiting for %s (%.0f seconds so far)", awaited.what, waited)
                else:  # a healthy start: advice comes when it takes longer
                    log.warning("waiting for %s", awaited.what.partition(": ")[0])
                self._said = begun if waited else begun - _SAY_EVERY + 15.0  # then what to do is said, too
        time.sleep(min(self._poll_seconds, left))
        self.waited_seconds += time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class FrozenEras:
    """Some eras, of which nothing changes any more."""

    eras: range
    merged: Era
    """All of them as one: each partition's blocks, and whether the end marker is among them."""
    content: Content
    """The last of them, whose hash covers all before it and their blocks."""


def freeze_eras(
    store: Path, info: StreamInfo, eras: range | None, trainable: TrainableSamples, *, from_start: bool
) -> FrozenEras:
    """Return the eras that are asked for; None: all that are in the store now.

    Of all, those of which segments were retired are left out, unless ``from_start``. Raises InputError where they are
    not all there; DifferenceError, DamagedError where the store is not what its eras say, or damaged.
    """
    index, last = open_eras(store, info.name), None if eras is None else eras.stop - 1
    if eras is None:
        start = 0 if from_start else bisect_left(range(index.eras), x=True, key=partial(_is_whole, index, trainable))
        if start and not any(part.blocks for number in range(start, index.eras) for part in index.era(number).ranges):
            raise InputError(
                f"no era of {info.name} is whole in {store}: its older segments were retired, as far as into era "
                f"{start - 1}, the last one. Read a store that still holds them, or wait for the next era"
            )
        lacks = partial(_lacks, index, trainable, start)
        eras = range(start, start + bisect_left(range(start, index.eras), x=True, key=lacks))
    if (lost := trainable.lost(eras.stop if last is None else last)) is not None:
        raise lost
    if not eras and last is None:
        raise InputError(f"nothing to read yet: {awaited_era(trainable, eras.start).what}, or open this later")
    if not 0 <= eras.start < eras.stop <= index.eras:
        raise InputError(
            f"the eras {eras} of {info.name} are not in {store}, which has {index.eras}: wait for them, or give "
            "a range of one era or more that are there, such as range(0, 8)"
        )
    merged = _merge(index.era(eras.start), index.era(eras.stop - 1))
    if not trainable.is_trainable(merged):
        raise InputError(f"not all blocks of the eras {eras} of {info.name} are in {store} yet: wait for them")
    return FrozenEras(eras, merged, Content(eras.stop - 1, index.hash_of(eras.stop - 1).hex()))


def open_trainable(
    store: Path, info: StreamInfo, sequence_length: int, views: int, *, check: bool = True
) -> TrainableSamples:
    """Return what knows which eras of a stream are in a store; samples are in the order of their blocks."""
    fingerprint = info.fingerprint.hex()
    sequence = SequenceId(info.name, fingerprint, sequence_length, seed=0, shuffle=False, eras=(0, None), passes=1)
    return TrainableSamples(store, info, sequence, views, check=check, on_damage="refuse")


def _is_whole(index: EraReader, trainable: TrainableSamples, number: int) -> bool:
    ranges = index.era(number).ranges
    return all(part.first >= trainable.reader(n).first_block for n, part in enumerate(ranges) if part.blocks)


def _lacks(index: EraReader, trainable: TrainableSamples, start: int, number: int) -> bool:
    # With those before it: an era alone may have no blocks of the partition that lacks some.
    return not trainable.is_trainable(_merge(index.era(start), index.era(number)))


def _merge(first: Era, last: Era) -> Era:
    """Return two eras and all between as one: each range continues the one before."""
    begun = len(first.ranges)
    ranges = [
        EraRange(first.ranges[number].first if number < begun else 0, part.stop, part.before, part.after)
        for number, part in enumerate(last.ranges)
    ]
    return Era(first.number, first.before, tuple(ranges), last.closed, last.end)


class OpenedStream(HasTokenizer):
    """A stream that is read by index: where it is, and how."""

    _store: Path
    """The directory of the store, or the folder for what is read of a bucket."""

    def _find(self, store: Any, stream: Any, *, eras: Any = None, check: Any, cache: Any, cache_bytes: Any) -> None:
        """Check these arguments and read what the stream is; raises as `store_folder`, and InputError."""
        most = None if cache_bytes is None else arguments.whole("cache_bytes", cache_bytes, 1, "bytes")
        self._store = store_folder(store, arguments.stream_name("stream", stream), cache, most)
        self._check = arguments.flag("check", check)
        arguments.eras_of("eras", eras)
        self._info = read_stream(self._store, stream)
        self._tokenizer = StoredTokenizer(self._store, self._info)
        self._reachable = ReachableStream((self._store, stream))
