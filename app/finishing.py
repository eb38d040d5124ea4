"""Work in a thread that is not left behind."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


async def in_thread(action: Callable[[], T]) -> T:
    """Run ``action`` in a thread, to its end even when cancelled: it goes on anyway, and its files must be kept open.

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
        log.debug("cancelled while writing", error=repr(task.exception()))
        raise asyncio.CancelledError
    return task.result()
