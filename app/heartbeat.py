"""What a worker tells its supervisor: once a second, that its event loop turns, and how far it is.

One JSON object a line on the file descriptor that ``TOKENMILL_HEARTBEAT_FD`` names; without it, nothing is written.
"""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, Final

HEARTBEAT_VARIABLE: Final = "TOKENMILL_HEARTBEAT_FD"
INTERVAL_SECONDS: Final = 0.5


async def beat(status: Callable[[], dict[str, Any]]) -> None:
    """Write the worker's status again and again, until cancelled; a supervisor that is gone ends the worker.

    The pipe's other end closes when the supervisor dies, however it dies, so no worker outlives it.
    """
    descriptor = os.environ.get(HEARTBEAT_VARIABLE)
    if descriptor is None:
        return
    os.set_blocking(int(descriptor), False)
    while True:
        line = json.dumps(status(), separators=(",", ":")).encode() + b"\n"
        try:
            os.write(int(descriptor), line)
        except BlockingIOError:
            pass  # the supervisor is busy; the next beat tells more than this one
        except BrokenPipeError:
            os._exit(0)
        await asyncio.sleep(INTERVAL_SECONDS)
