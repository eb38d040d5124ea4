"""Reading a part of a file, once: cheaper than to map what is looked at a single time."""

import os
from pathlib import Path


def read_part(path: Path, first: int, stop: int) -> bytes:
    """Return the bytes ``[first, stop)`` of a file, as many as there are; none where there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, max(min(size, stop) - first, 0), first)
    finally:
        os.close(descriptor)
