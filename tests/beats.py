"""The receiving end of a worker's heartbeats."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tokenmill.app.telemetry.reporting import counted


class Beats:
    """Hears one worker: its last status, and its last words."""

    def __init__(self) -> None:
        self.status: Mapping[str, Any] = {}
        """The last heartbeat; empty before the first."""
        self.words: str | None = None
        """Why the worker says that it ends."""
        self._ours = -1
        self._heard = threading.Event()

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Yield the file descriptor that the worker must inherit; it is closed here when the block ends."""
        self._ours, its = os.pipe()
        try:
            yield its
        finally:
            os.close(its)
            threading.Thread(target=self._listen, daemon=True).start()

    def counted(self, name: str) -> float:
        """Return what the last heartbeat counts of one of `COUNTED`."""
        return counted((sample, value) for sample, _, value in self.status.get("metrics", ()))[name]

    def wait_for_end(self, seconds: float = 5.0) -> None:
        """Wait until everything is heard that an ended worker said."""
        self._heard.wait(seconds)

    def _listen(self) -> None:
        with os.fdopen(self._ours, "rb") as pipe:
            for line in pipe:
                beat = json.loads(line) if line.endswith(b"\n") else {}  # a killed worker may leave half a line
                if "ends" in beat:
                    self.words = str(beat["ends"])
                elif beat:
                    self.status = beat
        self._heard.set()
