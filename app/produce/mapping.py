"""``--map module:function``: somebody's own function on every row, in processes side by side, in order."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from typing import Any, Final

import orjson

from tokenmill.errors import InputError

from .formats import Bad, Content, Entry, Text

BATCH: Final = 64
"""Rows that go to a process at once: a trip there costs as much as some dozen small rows."""

Function = Callable[[dict[str, Any]], Any]


class Mapping:
    """A function, given as ``module:function``, and the processes that run it.

    It is called with each row as a dict (a JSON object, the fields of a row, ``{"text": …}``) and returns a dict, a
    text, or None for what is not wanted. It must give the same answer each time. What it raises is a refusal.
    """

    def __init__(self, name: str, processes: int | None = None) -> None:
        """Import the function once, to see that it is there.

        Raises:
            InputError: there is no such function.

        """
        self.name = name
        find_function(name)
        self._processes = processes or len(os.sched_getaffinity(0))
        # Not forked: other threads run already, and a copy of their locks would stay locked for ever.
        self._pool = ProcessPoolExecutor(
            self._processes, mp_context=get_context("spawn"), initializer=_see, initargs=(sys.path,)
        )

    def of(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Yield the entries with what the function makes of their content, in order."""
        waiting: deque[Future[list[Entry]]] = deque()
        batches = _Batches(entries)
        for batch in batches:
            waiting.append(self._pool.submit(_apply, self.name, batch))
            if len(waiting) > 2 * self._processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
        if batches.error is not None:  # what was read before it has been let out
            raise batches.error

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Batches:
    """Batches of entries; an error in reading them ends the last one and is kept."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self.error: Exception | None = None
        self._entries = entries

    def __iter__(self) -> Iterator[list[Entry]]:
        ended = False
        while not ended:
            batch: list[Entry] = []
            try:
                batch.extend(islice(self._entries, BATCH))
                ended = len(batch) < BATCH
            except Exception as error:  # noqa: BLE001 - raised again by whoever iterates
                self.error, ended = error, True
            if batch:
                yield batch


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


def _see(path: list[str]) -> None:
    """Look for modules where the parent does, its working directory included."""
    sys.path[:] = path


def _apply(name: str, entries: Iterable[Entry]) -> list[Entry]:
    function = find_function(name)
    return [(number, at, _mapped(function, content)) for number, at, content in entries]


def _mapped(function: Function, content: Content) -> Content:
    if content is None or isinstance(content, Bad):
        return content
    try:
        row = _row(content)
        made = function(row)
    except Exception as error:  # noqa: BLE001 - somebody's own code: whatever it raises is about this row
        return Bad(f"--map: {type(error).__name__}: {error}", content if isinstance(content, bytes) else b"")
    if made is None:
        return None
    if isinstance(made, str):
        return Text(made.encode("utf-8", "surrogatepass"))
    return (
        made if isinstance(made, dict) else Bad(f"--map: it returned {type(made).__name__}, not a dict, a text or None")
    )


def _row(content: Content) -> dict[str, Any]:
    if isinstance(content, Text):
        return {"text": content.data.decode()}
    row = orjson.loads(content) if isinstance(content, bytes) else content
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    return row
