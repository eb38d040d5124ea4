"""What people give to the classes of this package, held against what it must be; each refusal says what to give."""

import math
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tokenmill.errors import InputError
from tokenmill.samples import Ranks, SequenceId

_INT64: Final = range(-(1 << 63), 1 << 63)


def whole(name: str, value: Any, least: int, unit: str) -> int:
    """Return a whole number of at least ``least``, as an int, also where it is one of numpy's.

    Raises:
        InputError: it is something else, such as 4.0 or True.

    """
    number = _int(value)
    if number is None or number < least:
        raise InputError(
            f"{name} is {value!r}: give a whole number of {unit}, {least} or more, such as {max(least, 4)}"
        )
    return number


def sequence_of(stream: Any, sequence_length: Any, *, seed: Any, shuffle: Any, eras: Any, passes: Any) -> SequenceId:
    """Return the sequence of samples that is asked for, without the fingerprint, which the store knows.

    Raises:
        InputError: one of these cannot be.

    """
    return SequenceId(
        stream=stream_of(stream),
        fingerprint="",
        sequence_length=whole("sequence_length", sequence_length, 1, "tokens"),
        seed=seed_of(seed),
        shuffle=flag("shuffle", shuffle),
        eras=eras_of(eras),
        passes=whole("passes", passes, 1, "passes"),
    )


def ranks_of(batch_size: Any, rank: Any, world_size: Any, worker: Any) -> Ranks:
    """Return how steps are divided; raises InputError where one of these cannot be, or they contradict each other."""
    if not isinstance(worker, tuple | list) or len(worker) != 2:  # noqa: PLR2004 - number and count
        raise InputError(f"worker is {worker!r}: give this worker's number and their count, such as (0, 2)")
    return Ranks(
        whole("batch_size", batch_size, 1, "samples"),
        whole("rank", rank, 0, "ranks before this one"),
        whole("world_size", world_size, 1, "ranks"),
        whole("worker[0]", worker[0], 0, "workers before this one"),
        whole("worker[1]", worker[1], 1, "workers"),
    )


def seed_of(value: Any) -> int:
    """Return a seed as an int; raises InputError where it is none of 64 bits."""
    number = _int(value)
    if number is None or number not in _INT64:
        raise InputError(f"seed is {value!r}: give a whole number of 64 bits, such as 1")
    return number


def flag(name: str, value: Any) -> bool:
    """Return a truth value; raises InputError for all that is none, whatever Python would make of it."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {value!r}: give True or False")
    return bool(value)


def seconds(name: str, value: Any) -> float:
    """Return a finite time, 0 or more; raises InputError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} is {value!r}: give a number of seconds, such as 30.0")
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} is {value!r}: give a finite number of seconds, 0 or more")
    return float(value)


def timeout_of(value: Any) -> float | None:
    """Return a timeout in seconds; None stands for ever."""
    return None if value is None or value is math.inf else seconds("timeout", value)


def store_of(value: Any) -> Path:
    """Return the path of a store; raises InputError where it is no path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InputError(f"store is {value!r}: give the path of the store's directory")
    return Path(value)


def stream_of(value: Any) -> str:
    """Return the name of a stream; raises InputError where it is no text."""
    if not isinstance(value, str):
        raise InputError(f"stream is {value!r}: give the stream's name, such as 'raw-text.train'")
    return value


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return one of the choices; raises InputError for anything else."""
    if not (isinstance(value, str) and value in choices):
        raise InputError(f"{name} is {value!r}: give {' or '.join(map(repr, choices))}")
    return value


def eras_of(value: Any) -> tuple[int, int | None]:
    """Return the first era and the one after the last; None stands for all.

    Raises:
        InputError: it is no range of one era or more, in steps of 1.

    """
    if value is None:
        return 0, None
    if not isinstance(value, range) or value.step != 1 or not 0 <= value.start < value.stop:
        raise InputError(f"eras is {value!r}: give a range of one era or more, such as range(0, 8), or None for all")
    return value.start, value.stop


def callable_of(name: str, value: Any) -> Callable[[], bool] | None:
    """Return a function of no argument, or None; raises InputError for what cannot be called."""
    if value is not None and not callable(value):
        raise InputError(f"{name} is {value!r}: give a function of no argument that says True or False, or None")
    return value  # type: ignore[no-any-return]


def _int(value: Any) -> int | None:
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
