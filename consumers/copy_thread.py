"""Copying the next batches while the loop works.

To copy rows out of a map, and to widen them, takes tens of microseconds for a batch: nothing beside a copy of the same
bytes, but a part of a training step all the same. To look up where the next hundreds of batches are takes milliseconds.
A loop whose steps are long gets both done meanwhile, by another thread; a loop that does nothing else is faster without
one.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

LONG_SECONDS: Final = 0.001
"""Of a step, from which on a thread is worth it: to hand something over takes up to a hundredth of it."""

Copied = TypeVar("Copied")
Made = TypeVar("Made")


class _Last(Enum):
    LAST = 0


_Found: TypeAlias = Iterable[Made] | _Last | None


class _Answer(NamedTuple):
    """What a thread made, or met."""

    found: Any
    error: BaseException | None


class Beside(Generic[Copied, Made]):
    """Makes batches out of copies, in the loop's own thread, or one copy ahead of it in another.

    Copies are made by one thread at a time, one after the other.
    """

    def __init__(self, *, in_thread: bool) -> None:
        """Have the thread copy, and make batches as well if ``in_thread``."""
        self._in_thread = in_thread
        self._process = -1
        """In which the thread runs: one that was forked from it has none."""
        self._tasks: SimpleQueue[Callable[[], _Found[Made]] | None] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._is_begun = False
        """Whether the thread makes something that was not taken yet."""

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
        if self._is_begun:
            self._is_begun = False
            if self._process == os.getpid():
                self._answers.get()

    def end(self) -> None:
        """Let the thread end."""
        self.settle()
        self._tasks.put(None)
        self._process = -1

    def _taken(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
        """Return what is made of the next copy, by the thread or here."""
        if self._is_begun:
            self._is_begun = False
            answer = self._answers.get()
            if answer.error is not None:
                raise answer.error
            if answer.found is not None:
                found: _Found[Made] = answer.found
                return found
        return _next(make, copies)

    def _next_whole(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
        """Return what is made of the next copy: all of it was made, if it may be made here."""
        found = _next(make, copies)
        return found if not self._in_thread or found is None or isinstance(found, _Last) else list(found)

    def _begin(self, task: Callable[[], _Found[Made]]) -> None:
        """Have the thread do something; queues cost a fifth of what futures do."""
        if self._process != os.getpid():
            self._process, self._tasks, self._answers = os.getpid(), SimpleQueue(), SimpleQueue()
            weakref.finalize(self, self._tasks.put, None)
            Thread(target=_work, args=(self._tasks, self._answers), name="copies", daemon=True).start()
        self._is_begun = True
        self._tasks.put(task)


def _work(tasks: "SimpleQueue[Callable[[], Any] | None]", answers: "SimpleQueue[_Answer]") -> None:
    """Do what is asked for, one after the other, until None is; nothing is kept of it."""
    while (task := tasks.get()) is not None:
        answers.put(_answer(task))
        del task


def _answer(task: Callable[[], Any]) -> _Answer:
    try:
        return _Answer(task(), None)
    except BaseException as error:  # noqa: BLE001 - the loop's thread raises it
        return _Answer(None, error)


def _next(make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
    copy = next(copies, _Last.LAST)
    return copy if copy is None or isinstance(copy, _Last) else make(copy)
