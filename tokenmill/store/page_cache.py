"""Bringing parts of files into the system's page cache, so that maps of them are read without waiting for a disk.

`os.sendfile` into ``/dev/null`` moves no bytes: the system reads what is not in memory, in large pieces and ahead. A
page that is first touched through a map is read by itself instead, while the thread that touched it waits.

What is in memory already would cost 60 microseconds for a megabyte, and so a fifth of what a loop over a warm store
takes. The system is asked for that first, by `cachestat(2)`, which takes a few; Linux has it since 6.5.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from tokenmill.untrusted import open_regular

PIECE_BYTES: Final = 4 << 20
"""What is read in one go: large enough for a disk to be at its full speed, and done in milliseconds."""
_ANNOUNCED: Final = 256
"""Small parts that the system is told of before the first of them is waited for: a disk works at many at once."""
_CACHESTAT: Final = 451
"""The number of `cachestat`, on every processor; the C library has no function for it."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_REFUSED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a system or a file system answers that cannot send this file there."""


class FileRange(NamedTuple):
    """The bytes ``[first, stop)`` of a file; what is behind its end counts for nothing."""

    path: Path
    first: int
    stop: int


def read_pieces(part: FileRange) -> Iterator[int]:
    """Bring a part of a file into the page cache, piece by piece; yield the bytes that each piece had.

    A missing file has no bytes. The caller may stop between two pieces.

    Raises:
        OSError: the file cannot be read.

    """
    descriptor = _open(part.path)
    if descriptor is None:
        return
    try:
        at, stop = part.first, min(part.stop, os.fstat(descriptor).st_size)
        while at < stop:
            count = min(PIECE_BYTES, stop - at)
            if not is_cached(descriptor, at, count) and not (count := _read(descriptor, at, count)):
                return  # it was cut off meanwhile: whoever reads it says so
            yield count
            at += count
    finally:
        os.close(descriptor)


def read_small(parts: Iterable[FileRange]) -> None:
    """Bring many small parts of files into the page cache; those of one file follow each other.

    The disk is told of hundreds of them at a time, so it can work at many at once. Nothing between them is read.

    Raises:
        OSError: a file cannot be read.

    """
    for path, group in groupby(parts, key=lambda part: part.path):
        descriptor = _open(path)
        if descriptor is None:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            mine = [part for part in group if not is_cached(descriptor, part.first, part.stop - part.first)]
            for start in range(0, len(mine), _ANNOUNCED):
                some = mine[start : start + _ANNOUNCED]
                for part in some:
                    os.posix_fadvise(descriptor, part.first, part.stop - part.first, os.POSIX_FADV_WILLNEED)
                for part in some:
                    _read(descriptor, part.first, part.stop - part.first)
        finally:
            os.close(descriptor)


def _open(path: Path) -> int | None:
    try:
        return open_regular(path)
    except FileNotFoundError:
        return None


def _read(descriptor: int, at: int, count: int) -> int:
    """Have the system read bytes of a file; return how many there are of them."""
    try:
        return os.sendfile(_nowhere(), descriptor, at, count)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    return len(os.pread(descriptor, count, at))


def is_cached(descriptor: int, at: int, count: int) -> bool:
    """Return whether all pages of a part of a file, which must have it, are in memory; False where nobody says so.

    Linux says it since 6.5, to those who own the file or may write to it.
    """
    pages = (at + count + _PAGE_BYTES - 1) // _PAGE_BYTES - at // _PAGE_BYTES
    found = (ctypes.c_uint64 * 5)()  # pages: cached, dirty, being written, evicted, evicted recently
    part = (ctypes.c_uint64 * 2)(at, count)
    if _system_call()(_CACHESTAT, descriptor, part, found, 0) or found[0] < pages:
        return False
    try:  # pages that are being read count, too; they are read in order
        return os.preadv(descriptor, [bytearray(1)], at + count - 1, os.RWF_NOWAIT) == 1
    except OSError:  # EAGAIN: not there yet; others: a file system that cannot say so
        return False


@cache
def _system_call() -> Callable[..., int]:
    """Return `syscall` of the C library; it returns -1 where the system refuses."""
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return call


@cache
def _nowhere() -> int:
    """Return a descriptor of ``/dev/null``, which stays open."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
