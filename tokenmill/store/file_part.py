"""Reading a part of a file: cheaper than a map for bytes that are read only once."""

import os
from pathlib import Path
from typing import Final

from tokenmill.untrusted import open_regular

_AHEAD_BYTES: Final = 16 * 1024
"""What `FileAhead` reads and keeps: a read of so much costs hardly more than one of a line."""


def read_part(path: Path, first: int, stop: int) -> bytes:
    """Return the bytes ``[first, stop)`` of a file, as many as there are; none where there is no file."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, max(min(size, stop) - first, 0), first)
    finally:
        os.close(descriptor)


class FileAhead:
    """Reads parts of a file and some bytes ahead: for bytes that no longer change and are mostly read in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first = 0
        self._data = b""

    def read(self, first: int, stop: int, end: int) -> bytes:
        """Return the bytes ``[first, stop)``, as many as there are; those up to ``end`` do not change any more."""
        at = first - self._first
        if at < 0 or at + stop - first > len(self._data):
            self._data = read_part(self._path, first, max(stop, min(end, first + _AHEAD_BYTES)))
            self._first, at = first, 0
        return self._data[at : at + stop - first]

    def forget(self) -> None:
        """Drop the bytes that were read ahead."""
        self._data = b""
