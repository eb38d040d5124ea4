"""Somebody's own function, called on rows: the side of ``--map`` in processes of its own (`app.sources.mapping`).

It imports little, for there are as many such processes as cores, and each imports it.
"""

import mmap
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, TypeAlias

from tokenmill.errors import InputError, PanicError

from ..milling.foreign_code import NativeCode, import_own
from .items import object_in

COUNT_BYTES: Final = 8
"""Of the shared memory that says from how many rows of the list in hand the function has returned."""

_CALLED: Final = NativeCode("native code that the function calls")

Function = Callable[[Any], Any]


class Wrong(NamedTuple):
    """Why there is nothing for a row."""

    why: str


Made: TypeAlias = dict[str, Any] | str | Wrong | None


@cache
def find_function(name: str) -> Function:
    """Return the function that ``module:function`` names. Raises InputError where there is none."""
    try:
        with _CALLED:
            found = import_own(name)
    except (ImportError, AttributeError, ValueError, PanicError) as error:
        raise InputError(
            f"--map {name}: {error}; give it as module:function, from a module that can be imported; the working "
            "directory is looked in last"
        ) from error
    if not callable(found):
        raise InputError(f"--map {name}: that is no function")
    return found  # type: ignore[no-any-return]


def made_of_list(function: Function, packed: Sequence[bytes]) -> list[Made]:
    """Return what a function that takes lists makes of pickled rows; where it raises, each is tried alone."""
    made: list[Made] = [None] * len(packed)
    rows: dict[int, dict[str, Any]] = {}
    for place, one in enumerate(packed):
        try:
            rows[place] = _fields(_unpacked(one))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - no object, or no JSON
            made[place] = _raised(error)
    if not rows:
        return made
    try:
        with _CALLED:
            answers = function([*rows.values()])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - somebody's own code
        if len(packed) == 1:
            return [_raised(error)]
        return [answer for one in packed for answer in made_of_list(function, [one])]
    if not isinstance(answers, (list, tuple)) or len(answers) != len(rows):
        what = f"{len(answers)} of them" if isinstance(answers, (list, tuple)) else type(answers).__name__
        answers = [Wrong(f"it was given a list of {len(rows)} and returned {what}, not a list of as many")] * len(rows)
    for place, answer in zip(rows, answers, strict=True):
        good = answer is None or isinstance(answer, (dict, str, Wrong))
        made[place] = answer if good else Wrong(f"it returned {type(answer).__name__}, not a dict, a text or None")
    return made


def serve(pipe: int, counter: int, name: str, *, listed: bool) -> None:
    """Answer lists of rows that come through a pipe until its other side is gone; ``listed``: the function takes lists.

    The first message says why the function cannot be imported, and is empty where it can.
    """
    connection, count = Connection(pipe), mmap.mmap(counter, COUNT_BYTES)
    try:
        function = find_function(name)
    except InputError as error:
        connection.send_bytes(str(error).encode("utf-8", "replace"))
        return
    connection.send_bytes(b"")
    while True:
        try:
            packed, alone = _unpacked(connection.recv_bytes())
        except EOFError:
            return
        made: list[Made] = []
        if listed and not alone:
            made = made_of_list(function, packed)
        else:
            for number, one in enumerate(packed):
                count[:] = number.to_bytes(COUNT_BYTES, sys.byteorder)
                made += made_of_list(function if listed else lambda rows: [function(rows[0])], [one])
        connection.send_bytes(_packed(made))


def _fields(row: bytes | dict[str, Any]) -> dict[str, Any]:
    found = object_in(row) if isinstance(row, bytes) else row
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def _raised(error: Exception) -> Wrong:
    return Wrong(str(error) if isinstance(error, PanicError) else f"{type(error).__name__}: {error}")


def _unpacked(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - the parent's


def _packed(made: list[Made]) -> bytes:
    """Return the answers pickled; one that cannot be is refused alone."""
    try:
        return pickle.dumps(made)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - objects of any kind may be in a row, and are asked how they are pickled
        return pickle.dumps([_fit(one) for one in made])


def _fit(made: Made) -> Made:
    try:
        pickle.dumps(made)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the same
        return Wrong(f"what it returned cannot leave its process: {type(error).__name__}: {error}")
    return made
