"""A program outside the stack that goes on sending for as long as it is wanted to."""

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PAUSE_SECONDS: Final = 0.05
"""Between two documents, while there is no hurry: 20 a second last for minutes, whatever the machine."""
END_SECONDS: Final = 180


class Sending:
    """Documents of a file, through the port on loopback, by `tokenmill produce` from a pipe. A context manager."""

    def __init__(self, bootstrap_servers: str, topic: str, file: Path) -> None:
        """Send nothing yet."""
        self._command = [sys.executable, "-m", "tokenmill.app.cli", "produce", topic, "-", "--format", "jsonl"]
        self._command += ["--bootstrap-servers", bootstrap_servers]
        self._file = file
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feed")

    def __enter__(self) -> Self:
        """Begin, slowly."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._hurry.set()
        self._thread.join()
        self._process.wait()

    @property
    def goes_on(self) -> bool:
        """Whether there are documents left, and somebody to send them."""
        return self._thread.is_alive() and self._process.poll() is None

    def finish(self) -> int:
        """Send the rest as fast as it goes, and return the exit code."""
        self._hurry.set()
        return self._process.wait(END_SECONDS)

    def _feed(self) -> None:
        pipe = self._process.stdin
        if pipe is None:
            return
        try:
            with self._file.open("rb") as lines, pipe:
                for line in lines:
                    pipe.write(line)
                    if not self._hurry.is_set():
                        pipe.flush()
                        self._hurry.wait(PAUSE_SECONDS)
        except BrokenPipeError:  # it has ended: `finish` says how
            return
