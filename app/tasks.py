"""Asyncio tasks that belong together, and work in threads: started, ended and finished as one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from tokenmill.errors import TokenMillError

T = TypeVar("T")

log = structlog.get_logger(__name__)


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
    """Run ``works`` while the block runs; on leaving it, they are cancelled and have ended.

    What one of them raises ends the block and the others, and is raised; of several errors of ours, the first is.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            yield
            for task in tasks:
                task.cancel()
    except* TokenMillError as errors:
        raise first_of(errors) from None


async def in_thread(action: Callable[[], T]) -> T:
    """Run ``action`` in a thread to its end, even when cancelled: the thread goes on anyway, and needs its files open.

    A cancellation is raised after that; what ``action`` returned or raised is lost then.
    """
    task = asyncio.create_task(asyncio.to_thread(action))
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        log.debug("cancelled while a thread worked", error=repr(task.exception()))
        raise asyncio.CancelledError
    return task.result()


def first_of(error: BaseException) -> BaseException:
    """Return the first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
