"""What a worker reports to its supervisor, twice a second: that its event loop turns, how far it is, and its metrics.

One JSON object a line on the file descriptor that `HEARTBEAT_VARIABLE` names; without it, nothing is written. A worker
beats from the moment it prepares, so that one that waits for something is not taken for one that is stuck.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client import Counter

from .. import telemetry as metrics
from .samples import Sample

HEARTBEAT_VARIABLE: Final = "_TOKENMILL_HEARTBEAT_FD"
"""The underscore keeps it apart from the settings' variables: of those, an unknown one is refused."""
STORE_VARIABLE: Final = "_TOKENMILL_STORE"
"""Names the store that a supervisor's last segment worker filled, for the next one: where a disk is not mounted, it
waits for it instead of beginning a new store in the empty directory."""
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


class Heartbeat:
    """Writes a worker's status again and again; a supervisor that is gone ends the worker.

    The pipe's other end closes when the supervisor dies, however it dies, so no worker outlives it.
    """

    def __init__(self) -> None:
        self._unsent = b""

    @property
    def heard(self) -> bool:
        """Whether a supervisor listens."""
        return os.environ.get(HEARTBEAT_VARIABLE) is not None

    def beat(self, status: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        """Tell the present status and metrics, if a supervisor listens."""
        if self.heard:
            # What the pipe did not take is sent first, else a line longer than the pipe would never be whole.
            self._unsent = _write(self._unsent or _line({**status, "counters": counters(), "metrics": samples}))


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
