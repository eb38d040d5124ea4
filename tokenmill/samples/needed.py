"""Which blocks of a store a checkpoint still needs: those of the era of its next sample, and of all later ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples.position import Position
from tokenmill.samples.sequence import count_views
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import StreamInfo
from tokenmill.untrusted import read_json_file


def read_state(file: Path) -> Position:
    """Return the position of a state that a trainer wrote into a file as JSON.

    Raises:
        InputError: the file is missing, or holds no state.

    """
    state = read_any_state(file)
    try:
        return Position.read(state)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def read_any_state(file: Path) -> Any:
    """Return what a trainer wrote into a file as JSON: a state, perhaps.

    Raises:
        InputError: the file is missing, or no JSON.

    """
    advice = "name a file that holds, as JSON, what state_dict() of Batches returned, and nothing else"
    try:
        return read_json_file(file)
    except (OSError, ValueError, DamagedError) as error:
        raise InputError(f"{file} cannot be read as a state ({error}): {advice}") from error


def first_needed(store: Path, info: StreamInfo, positions: Iterable[Position]) -> list[int]:
    """Return, for each partition, the first block that any of the positions needs; of partitions beyond, all.

    A position needs the whole era of its next sample, because an era is shuffled as a whole, and all later eras. While
    passes are left after the current one, it also needs the earlier eras, from the sequence's first one on. Where the
    era is not known yet, or the sequence is at its end, it needs the blocks after the last era that it has used.

    Raises:
        InputError: a position is one in another stream, or in one of that name that was made with other settings or
            of other text.
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
    eras, total = samples.eras, samples.total()
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
