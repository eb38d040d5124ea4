"""Copying the next batches while the loop works.

To copy rows out of a map and widen them takes tens of microseconds for a batch, which is a part of a training step. To
look up where the next hundreds of batches are takes milliseconds. A loop whose steps are long gets both done by another
thread during its steps; a loop that does nothing else is faster without one.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import Enum
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

LONG_SECONDS: Final = 0.001
"""Of a step, from which on a thread is worth it: to hand something over takes up to a hundredth of it."""

Copied = TypeVar("Copied")
Made = TypeVar("Made")


class _Last(Enum):
    LAST = 0


_Found: TypeAlias = Iterable[Made] | _Last | None


class Beside(Generic[Copied, Made]):
    """Makes batches out of copies, in the loop's own thread, or one copy ahead of it in another.

    Copies are made by one thread at a time, one after the other.
    """

    def __init__(self, *, in_thread: bool) -> None:
        """Have the thread copy, and make batches as well if ``in_thread``."""
        self._in_thread = in_thread
        self._process = -1
        """In which the thread runs: one that was forked from it has none."""
        self._pool: ThreadPoolExecutor | None = None
        self._begun: Future[_Found[Made]] | None = None
        """What the thread makes, or has made, and was not taken yet."""

    def batches(
        self,
        make: Callable[[Copied], Iterator[Made]],
        copies: Iterator[Copied | None],
        *,
        is_long: Callable[[], bool],
    ) -> Iterator[Made | None]:
        """Yield what ``make`` makes of all copies; while the loop's steps are long, the next copy is made meanwhile.

        Where ``copies`` gives None, there is nothing to copy yet: None is yielded if that still is so when the loop
        gets there. What ``copies`` raises, this raises, in the loop's thread. One loop at a time: `settle` ends others.
        """
        while (found := self._taken(make, copies)) is not _Last.LAST:
            if found is None:
                yield None
                continue
            if is_long():
                self._begin(partial(self._next_whole, make, copies))
            yield from found

    def settle(self) -> None:
        """Wait for what the thread makes, and forget it: nothing is copied when this returns."""
        begun, self._begun = self._begun, None
        if begun is not None and self._process == os.getpid():
            wait([begun])

    def end(self) -> None:
        """Let the thread end."""
        self.settle()
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown(wait=False)
        self._process = -1

    def _taken(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
        """Return what is made of the next copy, by the thread or here."""
        begun, self._begun = self._begun, None
        found = None if begun is None else begun.result()
        return _next(make, copies) if found is None else found

    def _next_whole(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
        """Return what is made of the next copy: all of it was made, if it may be made here."""
        found = _next(make, copies)
        return found if not self._in_thread or found is None or isinstance(found, _Last) else list(found)

    def _begin(self, task: Callable[[], _Found[Made]]) -> None:
        """Have the thread do something; it ends with this object."""
        if self._pool is None or self._process != os.getpid():
            self._process, self._pool = os.getpid(), ThreadPoolExecutor(1, "copies")
        self._begun = self._pool.submit(task)


def _next(make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
    copy = next(copies, _Last.LAST)
    return copy if copy is None or isinstance(copy, _Last) else make(copy)
