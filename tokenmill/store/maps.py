"""Files of a store in memory: mapped without a descriptor, read in parts, or brought into the page cache beforehand.

Python's own map keeps a descriptor open, and an era of small segments has more of them than the usual limit of 1,024
lets a process have. A map of a file that was cut off ends the process that reads there (SIGBUS), and no handler in
Python could say which file it was. So those who read ask now and then how long the files still are.

Parts of files that will be read through a map are brought into the page cache by `os.sendfile` into ``/dev/null``,
which moves no bytes: the system reads ahead, in large pieces. A page that is first touched through a map is read by
itself, while the thread waits. For what is in memory already, the system is asked first, by `cachestat(2)` (Linux 6.5),
which takes a few of the 60 microseconds for a megabyte.
"""

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple

import numpy as np

from tokenmill.errors import DamagedError, DiskError
from tokenmill.store.layout import MISSING, damaged
from tokenmill.untrusted import open_regular

_LOOK_SECONDS: Final = 0.05
"""How long what was seen of a file's length is believed: a microsecond for each file, twenty times a second."""
_LOOK_SHARE: Final = 100
"""Of the time, the part that looking may take where there are thousands of files: one in so many."""
_GROWN_SECONDS: Final = 5.0
"""How long a map is used once its file has another length: growth hides whether bytes before it were changed as well,
and to map a segment that is being written at each of its commits would cost more than to read it."""

_SYSTEM: Final = ctypes.CDLL(None, use_errno=True)
_mmap = _SYSTEM.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_munmap = _SYSTEM.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_madvise = _SYSTEM.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_syscall = _SYSTEM.syscall
_syscall.restype = ctypes.c_long
_FAILED: Final = ctypes.c_void_p(-1).value

Identity = tuple[int, int, int, int]
"""Device, inode, length and last change of a file: with the same ones, it holds the same bytes, if it is settled."""


def is_settled(identity: Identity) -> bool:
    """Return whether each change of the file from now on gives it another identity: none can be within its last tick.

    The kernel's clock has 100 ticks a second at least, and changes within one may have the same time: see "racy-git".
    """
    return time_ns() - identity[-1] > 20_000_000  # noqa: PLR2004 - two ticks


class FileMap:
    """A whole file, read-only, as it is shared by all who map it, until the last array over it is gone."""

    def __init__(self, path: Path, wanted: int) -> None:
        """Map a file that has ``wanted`` bytes, 1 at least; raises DamagedError where it has less, or DiskError."""
        self.path = path
        self.wanted = wanted
        with _opened(path) as descriptor:
            if descriptor is None:
                raise damaged(path, MISSING)
            seen = os.fstat(descriptor)
            if seen.st_size < wanted:
                raise self._cut(seen.st_size)
            self._address = _map(path, descriptor, seen.st_size)
        self.identity: Identity = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_ctime_ns)
        self.size = seen.st_size
        self._settled = is_settled(self.identity)
        self._mapped_at = monotonic()
        weakref.finalize(self, _munmap, self._address, seen.st_size).atexit = False  # others may still read then

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes, as numpy asks for them."""
        return {"data": (self._address, True), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def advise_large_pages(self) -> None:
        """Ask for pages of 2 MiB where the file system has them (Linux, madvise(2)): a twentieth of the page faults."""
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is not None:
            _madvise(self._address, self.size, advice)  # a kernel that was built without them refuses, which is no harm

    def is_current(self) -> bool:
        """Return whether the file of that name still holds the bytes that were mapped, or was removed.

        One that was mapped in the moment of a change counts as changed once that moment has passed. One of another
        length, with all that was committed, counts so five seconds after it was mapped: by its times, a change of
        committed bytes cannot be told from growth.

        Raises DamagedError where it was cut off: to read behind its end would end the process.
        """
        try:
            seen = self.path.stat()
        except FileNotFoundError:
            return True
        if (seen.st_dev, seen.st_ino) != self.identity[:2]:
            return False
        if seen.st_size < self.wanted:
            raise self._cut(seen.st_size)
        if seen.st_size != self.size:
            return monotonic() - self._mapped_at < _GROWN_SECONDS
        return seen.st_ctime_ns == self.identity[-1] and (self._settled or not is_settled(self.identity))

    def _cut(self, size: int) -> DamagedError:
        return damaged(self.path, f"it has {size} bytes, but {self.wanted} were committed")


class MapWatch:
    """Looks now and then at files that are mapped, just before they are read."""

    def __init__(self) -> None:
        self._due = 0.0
        self._took = 0.0

    def expire(self) -> None:
        """Look again as soon as it is asked for."""
        self._due = 0.0

    def look(self, arrays: Iterable["np.ndarray[Any, Any]"]) -> bool:
        """Return whether these arrays' files are, or just were, those of their names; raises DamagedError if cut."""
        now = monotonic()
        if now < self._due:
            return True
        files = {id(file): file for file in map(_file_of, arrays) if file is not None}
        current = [file.is_current() for file in files.values()]
        ended = monotonic()
        took, before = ended - now, self._took
        self._took = took
        # the shorter of two: a look during which the process had no processor says nothing about the files
        self._due = ended + max(_LOOK_SECONDS, _LOOK_SHARE * min(took, before))
        return all(current)


def _file_of(array: Any) -> FileMap | None:
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, FileMap) else None


def _map(path: Path, descriptor: int, size: int) -> int:
    address = _mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED or address is None:
        number = ctypes.get_errno()
        advice = (
            "this process has as many maps as it may: raise vm.max_map_count, or mill streams with larger segments"
            if number == errno.ENOMEM
            else "its file system has no memory maps, as some over FUSE: copy the store to a local disk"
            if number == errno.ENODEV
            else "check its file system"
        )
        raise DiskError(f"{path} cannot be mapped into memory ({os.strerror(number)}): {advice}")
    return int(address)


def read_part(path: Path, first: int, stop: int) -> bytes:
    """Return the bytes ``[first, stop)`` of a file, as many as there are; none where there is no file."""
    with _opened(path) as descriptor:
        if descriptor is None:
            return b""
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, max(min(size, stop) - first, 0), first)


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
            # A read of 16 KiB costs hardly more than one of a line.
            self._data = read_part(self._path, first, max(stop, min(end, first + (16 << 10))))
            self._first, at = first, 0
        return self._data[at : at + stop - first]


PIECE_BYTES: Final = 4 << 20
"""What is read in one go: large enough for a disk to be at its full speed, and done in milliseconds."""
_ANNOUNCED: Final = 256
"""Small parts that the system is told of before the first of them is waited for: a disk works at many at once."""
_CACHESTAT: Final = 451
"""The number of `cachestat`, on every processor; the C library has no function for it."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class FileRange(NamedTuple):
    """The bytes ``[first, stop)`` of a file; what is behind its end counts for nothing."""

    path: Path
    first: int
    stop: int


def is_in_memory(part: FileRange) -> bool:
    """Return whether a part of a file is in the page cache, as far as the system says; raises OSError."""
    with _opened(part.path) as descriptor:
        if descriptor is None or part.stop > os.fstat(descriptor).st_size:
            return False
        return is_cached(descriptor, part.first, part.stop - part.first)


def read_pieces(part: FileRange) -> Iterator[int]:
    """Bring a part of a file, if there is one, into the page cache; yield the bytes of each piece. Raises OSError."""
    with _opened(part.path) as descriptor:
        if descriptor is None:
            return
        at, stop = part.first, min(part.stop, os.fstat(descriptor).st_size)
        while at < stop:
            count = min(PIECE_BYTES, stop - at)
            if not is_cached(descriptor, at, count) and not (count := _read(descriptor, at, count)):
                return  # it was cut off meanwhile, which its reader will say
            yield count
            at += count


def read_small(parts: Iterable[FileRange]) -> None:
    """Bring many small parts of files into the page cache; those of one file follow each other. Raises OSError.

    The disk is told of hundreds of them at a time, so it can work at many at once. Nothing between them is read.
    """
    for path, group in groupby(parts, key=lambda part: part.path):
        with _opened(path) as descriptor:
            if descriptor is None:
                continue
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            mine = [part for part in group if not is_cached(descriptor, part.first, part.stop - part.first)]
            for start in range(0, len(mine), _ANNOUNCED):
                some = mine[start : start + _ANNOUNCED]
                for part in some:
                    os.posix_fadvise(descriptor, part.first, part.stop - part.first, os.POSIX_FADV_WILLNEED)
                for part in some:
                    _read(descriptor, part.first, part.stop - part.first)


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, at: int, count: int) -> int:
    try:
        return os.sendfile(_nowhere(), descriptor, at, count)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise  # else the system, or a file system, cannot send this file there
    return len(os.pread(descriptor, count, at))


def is_cached(descriptor: int, at: int, count: int) -> bool:
    """Return whether a part of a file, which must have it, is in memory; False where the system does not say.

    Linux says it since 6.5, to those who own the file or may write to it; some file systems count pages being read.
    """
    pages = (at + count + _PAGE_BYTES - 1) // _PAGE_BYTES - at // _PAGE_BYTES
    found = (ctypes.c_uint64 * 5)()  # pages: cached, dirty, being written, evicted, evicted recently
    part = (ctypes.c_uint64 * 2)(at, count)
    if _syscall(_CACHESTAT, descriptor, part, found, 0) or found[0] < pages:
        return False
    try:  # pages that are being read count, too; they are read in order
        return os.preadv(descriptor, [bytearray(1)], at + count - 1, os.RWF_NOWAIT) == 1
    except OSError as error:  # tmpfs, for one, cannot read without waiting: there, what counts has been read
        return error.errno == errno.EOPNOTSUPP


@cache
def _nowhere() -> int:
    """Return a descriptor of ``/dev/null``, which stays open."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
