"""Copying the next batches while the loop works.

To copy rows out of a map, and to widen them, takes tens of microseconds for a batch: nothing beside a copy of the same
bytes, but a part of a training step all the same. A loop whose steps are long gets it done meanwhile, by another
thread; a loop that does nothing else is faster without one.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Final, TypeAlias, TypeVar

LONG_SECONDS: Final = 0.001
"""Of a step, from which on a thread is worth it: to hand something over takes up to a hundredth of it."""

Copied = TypeVar("Copied")
Made = TypeVar("Made")


class _Last(Enum):
    LAST = 0


_Found: TypeAlias = Iterable[Made] | _Last


class Beside:
    """Makes batches out of copies, in the loop's own thread, or one copy ahead of it in another."""

    def __init__(self, *, in_thread: bool) -> None:
        """Have the thread copy, and make batches as well if ``in_thread``."""
        self._in_thread = in_thread
        self._threads: ThreadPoolExecutor | None = None

    def batches(
        self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied], *, is_long: Callable[[], bool]
    ) -> Iterator[Made]:
        """Yield what ``make`` makes of all copies; while the loop's steps are long, the next copy is made meanwhile.

        What ``copies`` raises, this raises, in the loop's thread.
        """
        ahead: Future[_Found[Made]] | None = None
        while (found := _next(make, copies) if ahead is None else ahead.result()) is not _Last.LAST:
            ahead = self._pool().submit(self._next_whole, make, copies) if is_long() else None
            yield from found

    def _next_whole(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied]) -> _Found[Made]:
        """Return what is made of the next copy: all of it was made, if it may be made here."""
        found = _next(make, copies)
        return found if found is _Last.LAST or not self._in_thread else list(found)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "copies")
        return self._threads


def _next(make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied]) -> _Found[Made]:
    copy = next(copies, _Last.LAST)
    return copy if isinstance(copy, _Last) else make(copy)
