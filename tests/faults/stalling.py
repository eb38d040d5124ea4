"""`tokenmill`, whose messages of blocks wait while a file exists: ``STALL=file``, ``-m tests.faults.stalling mill``."""

import asyncio
import os
from functools import wraps
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from tokenmill.app.cli import main

VARIABLE: Final = "STALL"


def stall(while_exists: Path) -> None:
    """Let nothing through to the token topics while the file exists."""
    send = AIOKafkaProducer.send

    @wraps(send)
    async def stalled(self: Any, topic: str, *rest: Any, **named: Any) -> Any:
        while topic.startswith("tokens.") and while_exists.exists():  # noqa: ASYNC110, ASYNC240 - a test's switch
            await asyncio.sleep(0.1)
        return await send(self, topic, *rest, **named)

    AIOKafkaProducer.send = stalled


if __name__ == "__main__":
    stall(Path(os.environ[VARIABLE]))
    main()
