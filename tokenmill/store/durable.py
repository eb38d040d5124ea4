"""Durable writes. Errors are the system's own (`OSError`); a failed write or sync is never tried again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tokenmill.errors import DiskError
from tokenmill.store.layout import TEMPORARY
from tokenmill.untrusted import open_regular

GOES_ON: Final = "a segment worker tries again by itself, and `tokenmill pack` goes on when it is called again"
"""What follows once a disk is there again."""


@contextmanager
def blaming(directory: Path) -> Iterator[None]:
    """Turn the system's errors inside into a `DiskError` that names ``directory`` and what to do."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise DiskError(
            f"{directory} cannot be used ({why}); what was committed is kept. Make room, repair or mount the disk: "
            f"{GOES_ON}"
        ) from error


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``; not yet durable. A full disk is an error here, never a dead process."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest = rest[written:]
        offset += written


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: those created, renamed and removed so far."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_way_to(directory: Path) -> None:
    """Make a new directory durable: its content, its name, and the names of its parents, which may be new as well.

    A parent that this process may not write to cannot be new.
    """
    sync_directory(directory)
    for parent in directory.parents:
        if not os.access(parent, os.R_OK | os.W_OK):
            break
        sync_directory(parent)


def put_file(path: Path, data: bytes) -> None:
    """Put a whole file in its place: after the return it is there durably, after a crash it is there whole or not."""
    temporary = path.with_name(path.name + TEMPORARY)
    descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_at(descriptor, data, 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync_directory(path.parent)
