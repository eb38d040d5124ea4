"""`tokenmill`, whose messages of blocks wait while a file exists: ``STALL=file``, ``-m tests.faults.stalling mill``.

Its fetches are small, so that a few of them are little beside a backlog that a test can afford.
"""

import asyncio
import os
from functools import wraps
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from tokenmill.app.cli import main
from tokenmill.app.worker import transport as faust_settings

VARIABLE: Final = "STALL"
FETCH_BYTES: Final = 1 << 20
"""The most that a fetch brings of a partition."""


def stall(while_exists: Path) -> None:
    """Let nothing through to the token topics while the file exists."""
    send = AIOKafkaProducer.send

    @wraps(send)
    async def stalled(self: Any, topic: str, *rest: Any, **named: Any) -> Any:
        while topic.startswith("tokens.") and while_exists.exists():  # noqa: ASYNC110, ASYNC240 - a test's switch
            await asyncio.sleep(0.1)
        return await send(self, topic, *rest, **named)

    AIOKafkaProducer.send = stalled


def fetch_little(partitions: int) -> int:
    """Return the same for any number of partitions."""
    return FETCH_BYTES


if __name__ == "__main__":
    faust_settings.fetch_share = fetch_little
    stall(Path(os.environ[VARIABLE]))
    main()
