"""Eras that are all in a store, as one range of blocks of each partition: the fixed content of datasets by index."""

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from tokenmill.eras import Era, EraRange
from tokenmill.errors import InputError
from tokenmill.samples.sequence import Content, SequenceId
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import EraReader, StreamInfo, open_eras

from .waiting import awaited_era


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
        start = 0 if from_start else _first_whole(index, trainable)
        if start and not any(part.blocks for number in range(start, index.eras) for part in index.era(number).ranges):
            raise InputError(
                f"no era of {info.name} is whole in {store}: its older segments were retired, as far as into era "
                f"{start - 1}, the last one. Read a store that still holds them, or wait for the next era"
            )
        eras = range(start, _trainable_now(index, trainable, start))
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


def _first_whole(index: EraReader, trainable: TrainableSamples) -> int:
    def is_whole(number: int) -> bool:
        ranges = index.era(number).ranges
        return all(part.first >= trainable.reader(n).first_block for n, part in enumerate(ranges) if part.blocks)

    return bisect_left(range(index.eras), True, key=is_whole)


def _trainable_now(index: EraReader, trainable: TrainableSamples, start: int) -> int:
    def has_too_few(number: int) -> bool:
        # With those before it: an era alone may have no blocks of the partition that lacks some.
        return not trainable.is_trainable(_merge(index.era(start), index.era(number)))

    return start + bisect_left(range(start, index.eras), True, key=has_too_few)


def _merge(first: Era, last: Era) -> Era:
    """Return two eras and all between as one: each range continues the one before."""
    begun = len(first.ranges)
    ranges = [
        EraRange(first.ranges[number].first if number < begun else 0, part.stop, part.before, part.after)
        for number, part in enumerate(last.ranges)
    ]
    return Era(first.number, first.before, tuple(ranges), last.closed, last.end)
