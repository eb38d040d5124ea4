"""Processes that carry a mark in their environment, which every child inherits."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

MARK: Final = "TEST_MARK"


def marked(mark: str) -> list[str]:
    """Return the command lines of all processes with ``MARK=mark`` that have not ended."""
    return sorted(command for command in _commands(f"{MARK}={mark}".encode()) if command)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, at most ``seconds``, and return whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _commands(variable: bytes) -> Iterator[str]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                if variable in (directory / "environ").read_bytes().split(b"\0"):
                    yield (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
