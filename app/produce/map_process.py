"""Somebody's function in a process of its own: what it makes of rows, and where it was when it ended or hung."""

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import c_uint64
from functools import cache
from importlib import import_module
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

import orjson

from tokenmill.errors import InputError

from .formats import Bad, Content, Text

LOOK_SECONDS: Final = 0.5
"""Between two looks at whether the function has returned from a call since."""
START_SECONDS: Final = 600.0
"""How long a process may take to import the function: libraries for models take their time."""
END_SECONDS: Final = 5.0
"""How long a process that closed its pipe may take to be gone."""
_CPUS: Final = Path("/sys/devices/system/cpu")

Function = Callable[[Any], Any]


class Ended(NamedTuple):
    """What stands for an answer where there is none."""

    row: int
    """In the list that was given: the one that the function had."""
    why: str
    hung: bool = False


class MapProcess:
    """A process that runs a function; at most one list of rows is with it."""

    def __init__(self, name: str, *, listed: bool) -> None:
        """Start it; ``listed``: the function takes a list of rows."""
        # Not forked: other threads run already, and a copy of their locks would stay locked for ever.
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._returned = context.RawValue(c_uint64, 0)
        arguments = (theirs, self._returned, name, listed, sys.path)
        self._process = context.Process(target=_serve, args=arguments, name="produce-map", daemon=True)
        self._process.start()
        theirs.close()
        self._started = False

    def run(self, rows: Sequence[bytes], seconds: float, *, alone: bool = False) -> list[Content] | Ended:
        """Return what the function makes of rows (pickled contents), in order.

        ``alone``: a function that takes lists gets each row in a list of its own. `Ended`, and the process is gone,
        where the function ends it, or does not return from a call for so many seconds.

        Raises:
            InputError: the process cannot import the function.

        """
        self._returned.value = returned = 0
        try:
            if not self._started and (ended := self._start()):
                return ended
            self._pipe.send_bytes(pickle.dumps((list(rows), alone)))
            since = time.monotonic()
            while not self._pipe.poll(min(LOOK_SECONDS, seconds)):
                now = time.monotonic()
                if self._returned.value != returned:
                    returned, since = self._returned.value, now
                elif now - since > seconds:
                    self.kill()
                    return Ended(returned, f"it has not returned for {seconds:g} seconds", hung=True)
            return pickle.loads(self._pipe.recv_bytes())  # type: ignore[no-any-return] # noqa: S301 - ours
        except (EOFError, OSError):
            self._process.join(END_SECONDS)
            self.kill()
            return Ended(self._returned.value, _how_it_ended(self._process.exitcode))

    def _start(self) -> Ended | None:
        """Wait until the function is imported."""
        if not self._pipe.poll(START_SECONDS):
            self.kill()
            return Ended(0, f"it could not be imported in {START_SECONDS:g} seconds", hung=True)
        if why := self._pipe.recv_bytes():
            raise InputError(why.decode())
        self._started = True
        return None

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join(END_SECONDS)


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was ended by signal {-code}" + (
            ", as for want of memory" if code == -signal.SIGKILL else ""
        )
    return f"it ended its process with exit code {code}"


@cache
def find_function(name: str) -> Function:
    """Return the function that ``module:function`` names.

    Raises:
        InputError: there is none.

    """
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--map {name}: {error}; give it as module:function, from a module that can be imported"
        ) from error
    if not callable(found):
        raise InputError(f"--map {name}: {function} is no function")
    return found  # type: ignore[no-any-return]


def physical_cores() -> int:
    """Return how many cores there are of which this process may use a processor; those of one core share it."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:  # not every kernel tells: then each counts
            cores.add(str(cpu))
    return len(cores)


def _serve(pipe: Connection, returned: Any, name: str, listed: bool, path: list[str]) -> None:  # noqa: FBT001 - a process's arguments
    """Answer until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the parent, which closes the pipe
    Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = path  # modules are where the parent has them, its working directory included
    try:
        function = find_function(name)
    except InputError as error:
        pipe.send_bytes(str(error).encode("utf-8", "replace"))
        return
    pipe.send_bytes(b"")
    while True:
        try:
            rows, alone = pickle.loads(pipe.recv_bytes())  # noqa: S301 - the parent's
        except EOFError:
            return
        if listed and not alone:
            made = mapped_list(function, rows)
        else:
            made = []
            for row in rows:
                made += mapped_list(function, [row]) if listed else [mapped(function, row)]
                returned.value += 1
        pipe.send_bytes(_packed(made))


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, even in the middle of a call that does not."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def mapped(function: Function, packed: bytes) -> Content:
    """Return what the function makes of a row."""
    content: Content = pickle.loads(packed)  # noqa: S301 - ours
    if content is None or isinstance(content, Bad):
        return content
    try:
        return _content(function(_row(content)))
    except Exception as error:  # noqa: BLE001 - somebody's own code: whatever it raises is about this row
        return _raised(error, content)


def mapped_list(function: Function, packed: Sequence[bytes]) -> list[Content]:
    """Return what a function that takes lists makes of rows; where it raises, each is tried alone."""
    contents: list[Content] = [pickle.loads(one) for one in packed]  # noqa: S301 - ours
    rows: list[dict[str, Any]] = []
    places = []
    for place, content in enumerate(contents):
        if content is None or isinstance(content, Bad):
            continue
        try:
            rows.append(_row(content))
            places.append(place)
        except Exception as error:  # noqa: BLE001 - no object, or no JSON
            contents[place] = _raised(error, content)
    if not rows:
        return contents
    count = len(rows)
    try:
        made = function(rows)
    except Exception as error:  # noqa: BLE001 - somebody's own code
        if count == 1:
            contents[places[0]] = _raised(error, contents[places[0]])
            return contents
        return [made for one in packed for made in mapped_list(function, [one])]
    if not isinstance(made, (list, tuple)) or len(made) != count:
        what = f"{len(made)} of them" if isinstance(made, (list, tuple)) else type(made).__name__
        made = [Bad(f"--map: it was given a list of {count} and returned {what}, not a list of as many")] * count
    for place, one in zip(places, made, strict=True):
        contents[place] = one if isinstance(one, Bad) else _content(one)
    return contents


def _content(made: Any) -> Content:
    if made is None or isinstance(made, dict):
        return made
    if isinstance(made, str):
        return Text(made.encode("utf-8", "surrogatepass"))
    return Bad(f"--map: it returned {type(made).__name__}, not a dict, a text or None")


def _raised(error: Exception, content: Content) -> Bad:
    return Bad(f"--map: {type(error).__name__}: {error}", content if isinstance(content, bytes) else b"")


def _row(content: Content) -> dict[str, Any]:
    if isinstance(content, Text):
        return {"text": content.data.decode()}
    row = orjson.loads(content) if isinstance(content, bytes) else content
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    return row


def _packed(made: list[Content]) -> bytes:
    """Return the answer pickled; a row that cannot be is refused alone."""
    try:
        return pickle.dumps(made)
    except Exception:  # noqa: BLE001 - objects of any kind may be in a row, and be asked how they are pickled
        return pickle.dumps([_fit(content) for content in made])


def _fit(content: Content) -> Content:
    try:
        pickle.dumps(content)
    except Exception as error:  # noqa: BLE001 - the same
        return Bad(f"--map: what it returned cannot leave its process: {type(error).__name__}: {error}")
    return content
