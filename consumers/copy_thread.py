"""Making the next batches while the loop works.

To copy rows, widen them and send them to a device takes a hundred microseconds for a batch, a part of a training step;
to look up where the next hundreds are takes milliseconds. A loop whose steps are long gets both done by another thread
meanwhile; a loop that does nothing else is faster without one.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Event
from typing import Final, Generic, TypeAlias, TypeVar

from .transfer import End

LONG_SECONDS: Final = 0.001
"""Of a step, from which on a thread is worth it: to hand something over takes up to a hundredth of it."""

Copied = TypeVar("Copied")
Made = TypeVar("Made")


_Found: TypeAlias = Iterable[Made] | End | None


class CopyThread(Generic[Copied, Made]):
    """Makes batches out of copies, one at a time, in the loop's own thread, or one ahead of it in another."""

    def __init__(self) -> None:
        self._process = -1
        """In which the thread runs: one that was forked from it has none."""
        self._pool: ThreadPoolExecutor | None = None
        self._begun: tuple[list[Made], Future[_Found[Made]]] | None = None
        """What the thread has made by now, and was not taken yet; and what comes of it."""
        self._wanted = Event()

    def batches(
        self,
        make: Callable[[Copied], Iterator[Made]],
        copies: Iterator[Copied | None],
        *,
        step_seconds: Callable[[], float],
    ) -> Iterator[Made | None]:
        """Yield what ``make`` makes of all copies; while the loop's steps are long, the next ones are made meanwhile.

        None, from ``copies`` or here: there is nothing to copy yet. What ``copies`` raises, this raises, in the loop's
        thread. One loop at a time: `settle` ends others.
        """
        while (found := self._taken(make, copies)) is not End.END:
            if found is None:
                yield None
                continue
            if (seconds := step_seconds()) > LONG_SECONDS:
                # At the beginning of a step, a loop is busy with having a device begin, and would wait for the
                # interpreter's lock, up to 5 ms each time, while the thread has it.
                self._begin(partial(_next, make, copies), min(0.25 * seconds, 0.005))
            yield from found

    def settle(self) -> None:
        """Wait for what the thread makes, and forget it: nothing is copied when this returns."""
        begun, self._begun = self._begun, None
        if begun is not None and self._process == os.getpid():
            self._wanted.set()
            wait([begun[1]])

    def end(self) -> None:
        """Let the thread end."""
        self.settle()
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown(wait=False)
        self._process = -1

    def _taken(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
        begun, self._begun = self._begun, None
        if begun is None:
            return _next(make, copies)
        self._wanted.set()
        made, ended = begun
        if error := ended.exception():
            return _ended_by(made, error)
        found = ended.result()
        return _next(make, copies) if found is None else found

    def _begin(self, task: Callable[[], _Found[Made]], pause: float) -> None:
        """Have the thread do something, after a pause or when that is waited for; it ends with this object."""
        if self._pool is None or self._process != os.getpid():
            self._process, self._pool = os.getpid(), ThreadPoolExecutor(1, "copies")
        self._wanted, made = Event(), list[Made]()
        self._begun = made, self._pool.submit(_make_all, self._wanted, pause, task, made)


def _make_all(wanted: Event, pause: float, task: Callable[[], _Found[Made]], made: list[Made]) -> _Found[Made]:
    """Return what a task does, as a list that holds what was made before an error as well."""
    wanted.wait(pause)
    found = task()
    if found is None or isinstance(found, End):
        return found
    made.extend(found)
    return made


def _ended_by(made: list[Made], error: BaseException) -> Iterator[Made]:
    yield from made
    raise error


def _next(make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
    copy = next(copies, End.END)
    return copy if copy is None or isinstance(copy, End) else make(copy)
