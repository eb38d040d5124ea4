"""What a worker tells its supervisor: twice a second, that its event loop turns, and how far it is.

One JSON object a line on the file descriptor that `HEARTBEAT_VARIABLE` names; without it, nothing is written. A worker
beats from the moment it prepares, so that one that waits for something is not taken for one that is stuck.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import Counter

from . import metrics

HEARTBEAT_VARIABLE: Final = "_TOKENMILL_HEARTBEAT_FD"
"""The underscore keeps it apart from the settings' variables: of those, an unknown one is refused."""
INTERVAL_SECONDS: Final = 0.5
COUNTERS: Final[Mapping[str, Counter]] = {
    "records": metrics.RECORDS,
    "bytes": metrics.CONSUMED_BYTES,
    "documents": metrics.DOCUMENTS,
    "tokens": metrics.TOKENS,
    "blocks": metrics.BLOCKS,
    "dead_letters": metrics.DEAD_LETTERS,
    "duplicates": metrics.DUPLICATES,
    "commits": metrics.COMMITS,
}
"""What a beat counts, since the process began: work done, so what a crash made necessary again counts again."""


class Heart:
    """Writes a worker's status again and again; a supervisor that is gone ends the worker.

    The pipe's other end closes when the supervisor dies, however it dies, so no worker outlives it.
    """

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        """Write nothing yet."""
        self._status = status
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Beat in this event loop from now on, if a supervisor listens."""
        if self._task is None and os.environ.get(HEARTBEAT_VARIABLE) is not None:
            self._task = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")

    async def _beat(self) -> None:
        unsent = b""
        while True:
            # What the pipe did not take is sent first, else a line longer than the pipe would never be whole.
            unsent = _write(unsent or _line({**self._status(), "counters": counters()}))
            await asyncio.sleep(INTERVAL_SECONDS)


def counters() -> dict[str, float]:
    """Return what this process has counted so far, each over all labels."""
    return {
        name: sum(sample.value for metric in counter.collect() for sample in metric.samples if _is_count(sample.name))
        for name, counter in COUNTERS.items()
    }


def last_words(reason: str) -> None:
    """Tell the supervisor, if there is one, why this process is about to end."""
    _write(_line({"ends": reason}))


def _is_count(name: str) -> bool:
    return name.endswith("_total")  # the other samples say when the counter was made


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _write(data: bytes) -> bytes:
    """Write what the pipe takes now and return the rest; without a supervisor there is none."""
    descriptor = os.environ.get(HEARTBEAT_VARIABLE)
    if descriptor is None:
        return b""
    os.set_blocking(int(descriptor), False)
    try:
        return data[os.write(int(descriptor), data) :]
    except BlockingIOError:
        return data  # the supervisor is busy
    except BrokenPipeError:
        os._exit(0)
