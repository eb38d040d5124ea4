"""Asyncio tasks that belong together, work in threads, pauses between tries, and running until a signal says stop."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import structlog

from tokenmill.errors import TokenMillError

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Backoff:
    """Pauses in seconds that double up to the longest, and begin again after ``healthy`` seconds. The caller waits."""

    def __init__(self, first: float, longest: float, healthy: float = float("inf")) -> None:
        self._first, self._longest, self._healthy = first, longest, healthy
        self._next = first

    def next(self, ran: float = 0.0) -> float:
        """Return the pause after a try that failed after ``ran`` seconds; the following one is longer."""
        if ran >= self._healthy:
            self.reset()
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """Begin with the first pause again: a try succeeded."""
        self._next = self._first


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run ``works`` until all have ended; the first that raises cancels the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``works`` while the block runs, and cancel them behind it; an error of one ends the block and the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            yield
            for task in tasks:
                task.cancel()
    except* TokenMillError as errors:
        raise first_of(errors) from None


async def in_thread(action: Callable[[], T]) -> T:
    """Run ``action`` in a thread to its end, for it needs its files open; a cancellation is raised after that."""
    return await to_the_end(asyncio.to_thread(action))


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start ``work`` in a thread and return its future; unlike with a pool, the process may end before the work."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that cancelling does nothing: the thread sets it

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does; a cancellation is raised when it has ended, and what it returned is lost then."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        log.debug("cancelled while something ran to its end", error=repr(task.exception()))
        raise asyncio.CancelledError
    return task.result()


def first_of(error: BaseException) -> BaseException:
    """Return the first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def until_interrupted(work: Coroutine[Any, Any, T], *, at_once: bool = False) -> tuple[T | None, signal.Signals | None]:
    """Run ``work`` in an event loop of its own; return what it returned, or the signal of `STOPPING` that cancelled it.

    It is cancelled once, and ends what it started in order. A second signal does what it does to any program, and one
    that was ignored when the process began (``nohup``) stays so. ``at_once``: none is ignored, and the second one ends
    this process at once; the kernel kills the children that asked for that (`app.processes`).
    """
    return asyncio.run(_until_interrupted(work, at_once))


async def _until_interrupted(work: Coroutine[Any, Any, T], at_once: bool) -> tuple[T | None, signal.Signals | None]:  # noqa: FBT001 - as above
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    received: list[signal.Signals] = []
    handled: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        leave()
        task.cancel()

    def leave() -> None:
        while handled and not at_once:
            loop.remove_signal_handler(handled.pop())

    for number in STOPPING if threading.current_thread() is threading.main_thread() else ():
        if at_once or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, interrupt, number)
            handled.append(number)
    try:
        return await task, None
    except asyncio.CancelledError:
        if not received:
            raise
        return None, received[0]
    finally:
        leave()


def run_until_signalled(main: Coroutine[Any, Any, int | None], *, serves: bool = False) -> int:
    """Run ``main`` as `until_interrupted` does, ``at_once``; return what it returns, or 128 + n after signal n.

    Of a process that ``serves`` until it is told to end, SIGTERM is the orderly end: 0, as of a worker.
    """
    code, received = until_interrupted(main, at_once=True)
    if received is None:
        return code or 0
    return 0 if serves and received == signal.SIGTERM else 128 + received
