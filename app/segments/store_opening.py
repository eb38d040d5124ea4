"""Opening a partition's directory in a store: as soon as whoever holds it gives it free, and the disk lets us."""

import asyncio
from collections.abc import Callable
from typing import Final

from tokenmill.errors import DiskError, LockedError
from tokenmill.store import PartitionWriter, Store

from ..kafka.retry import Backoff

LOCK_SECONDS: Final = 0.25
"""How soon a partition that waits for another process to give its directory free tries again."""
DISK_SECONDS: Final = 0.5
"""How soon one that waits for its disk tries again; then ever later ..."""
LONGEST_DISK_SECONDS: Final = 5.0
"""... up to this: blocks come soon after the disk is mended, and until then it is hardly touched."""


async def open_writer(
    store: Store, stream: str, partition: int, wanted: Callable[[], bool], wait: Callable[[str, Exception], None]
) -> PartitionWriter | None:
    """Lock and recover a partition's directory, however long another holds it; None once it is no longer ``wanted``.

    ``wait`` is told, before each new attempt, what is waited for and why. Raises as `PartitionWriter.open`, but for
    `LockedError` and `DiskError`.
    """
    backoff = Backoff(DISK_SECONDS, LONGEST_DISK_SECONDS)
    while wanted():
        try:
            return await _opened(store, stream, partition)
        except LockedError as error:
            wait("waiting for the directory", error)
            await asyncio.sleep(LOCK_SECONDS)
        except DiskError as error:
            wait("waiting for the disk", error)
            await asyncio.sleep(backoff.next())
    return None


async def _opened(store: Store, stream: str, partition: int) -> PartitionWriter:
    """Open the writer in a thread; if this is cancelled meanwhile, the writer is closed and not left behind."""
    opening = asyncio.create_task(asyncio.to_thread(PartitionWriter.open, store, stream, partition))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda done: None if done.exception() else done.result().close())
        raise
