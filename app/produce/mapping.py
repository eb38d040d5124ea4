"""``--map module:function``: somebody's own function on every row, in processes side by side, in order."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import orjson

from tokenmill.errors import InputError

from .ahead import ITEM_BYTES, Ahead
from .formats import Bad, Content, Entry, Text

BATCH: Final = 64
"""Rows that go to a process at once: a trip there costs as much as some dozen small rows."""
BATCH_BYTES: Final = 1 << 17
"""Of these rows, where they are large; `Ahead` holds enough such batches to keep some dozen processes busy."""

Function = Callable[[dict[str, Any]], Any]


class _Packed(NamedTuple):
    """An entry with its content pickled: so one knows how large it is, whatever it is."""

    number: int
    at: int
    content: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes, roughly."""
        return len(self.content) + ITEM_BYTES


class _Sent(NamedTuple):
    """A batch that went to a process."""

    made: Future[list[Entry]]
    size: int
    last: int
    """Number of its last entry."""


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
        # Not forked: other threads run already, and a copy of their locks would stay locked for ever.
        self._pool = ProcessPoolExecutor(
            processes or len(os.sched_getaffinity(0)),
            mp_context=get_context("spawn"),
            initializer=_see,
            initargs=(sys.path,),
        )

    def of(self, entries: Iterator[Entry], *, name: str = "the source", piped: bool = False) -> Iterator[Entry]:
        """Yield the entries with what the function makes of their content, in order; an error in reading comes last.

        ``name`` is what people know their source by.

        They are read by a thread, as far ahead as `Ahead` allows, so that large rows take no more memory than small
        ones. Where they are ``piped``, each goes to a process as soon as it is there, and is yielded whatever comes
        behind it when: a pipe may pause.

        Raises:
            InputError: a process died while it ran the function; all entries before that are yielded.

        """
        before = 0
        packed = (_Packed(number, at, pickle.dumps(content)) for number, at, content in entries)
        with Ahead(self._sent(_at_hand(packed) if piped else _full(packed))) as ahead:
            try:
                while (sent := ahead.wait(None)) is not None:
                    yield from sent.made.result()
                    before = sent.last
            except BrokenExecutor as error:
                raise InputError(
                    f"--map {self.name}: a process that ran it was ended, by the function itself or by the system for "
                    f"its memory, at a row of {name} behind entry {before}, or of a file that is read beside it. What "
                    "was sent stands. Let the function take less, or return None for that row; the same command then "
                    "goes on"
                ) from error

    def _sent(self, batches: Iterator[list[_Packed]]) -> Iterator[_Sent]:
        for batch in batches:
            size = sum(packed.size for packed in batch)
            yield _Sent(self._pool.submit(_apply, self.name, batch), size, batch[-1].number)

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _full(entries: Iterator[_Packed]) -> Iterator[list[_Packed]]:
    """Yield full batches; what was read before an error is yielded before it is raised."""
    batch: list[_Packed] = []
    size = 0
    try:
        for packed in entries:
            batch.append(packed)
            size += packed.size
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _at_hand(entries: Iterator[_Packed]) -> Iterator[list[_Packed]]:
    """Yield batches of what is there, be it one entry; another thread reads them."""
    with Ahead(entries) as ahead:
        while (first := ahead.wait(None)) is not None:
            batch, size = [first], first.size
            while len(batch) < BATCH and size < BATCH_BYTES and (more := ahead.take_now()) is not None:
                batch.append(more)
                size += more.size
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


def _apply(name: str, batch: Sequence[_Packed]) -> list[Entry]:
    function = find_function(name)
    return [(number, at, _mapped(function, pickle.loads(content))) for number, at, content in batch]  # noqa: S301 - ours


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
