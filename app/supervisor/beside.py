"""Work that goes on beside a block of code."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tokenmill.errors import TokenMillError

from ..together import first_of


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
