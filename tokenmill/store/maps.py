"""Files of a store in memory: mapped without a descriptor, and looked at again for as long as they are read.

Python's own map keeps a descriptor open, and an era of small segments has more of them than the usual limit of 1,024
lets a process have. The system's call needs none behind it. A map of a file that was cut off ends the process that
reads there (SIGBUS), and no handler in Python could say which file it was. So those who read ask now and then how long
the files still are.
"""

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final

import numpy as np

from tokenmill.errors import DamagedError, DiskError
from tokenmill.store.damage import MISSING, damaged
from tokenmill.untrusted import open_regular

_LOOK_SECONDS: Final = 0.05
"""How long what was seen of a file's length is believed: a microsecond for each file, twenty times a second."""
_LOOK_SHARE: Final = 100
"""Of the time, the part that looking may take where there are thousands of files: one in so many."""
_GROWN_SECONDS: Final = 5.0
"""How long a map is used once its file has another length: growth hides whether bytes before it were changed as well,
and to map a segment that is being written at each of its commits would cost more than to read it."""
_CLOCK_TICK_NS: Final = 20_000_000
"""Two changes of a file within a tick of the kernel's clock may have the same time: it has 100 a second at least."""

_SYSTEM: Final = ctypes.CDLL(None, use_errno=True)
_mmap = _SYSTEM.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_munmap = _SYSTEM.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_madvise = _SYSTEM.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED: Final = ctypes.c_void_p(-1).value

Identity = tuple[int, int, int, int]
"""Device, inode, length and last change of a file: with the same ones, it holds the same bytes, if it is settled."""


def is_settled(identity: Identity) -> bool:
    """Return whether each change of the file from now on gives it another identity: none can be within its last tick.

    As Git does it with the files of its index, see "racy-git" in its documentation.
    """
    return time_ns() - identity[-1] > _CLOCK_TICK_NS


class FileMap:
    """A whole file, read-only, as it is shared by all who map it; ``np.asarray`` gives its bytes.

    It is unmapped when this and the last array over it are gone.
    """

    def __init__(self, path: Path, wanted: int) -> None:
        """Map a file that must have ``wanted`` bytes, 1 at least.

        Raises:
            DamagedError: it is missing, or shorter.
            DiskError: the system does not map it.

        """
        self.path = path
        self.wanted = wanted
        """Bytes of it that are committed, as far as those who read it know."""
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            raise damaged(path, MISSING) from None
        try:
            seen = os.fstat(descriptor)
            if seen.st_size < wanted:
                raise self._cut(seen.st_size)
            self._address = _map(path, descriptor, seen.st_size)
        finally:
            os.close(descriptor)
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

        Where it was mapped in the same moment that it was changed in, it counts as changed once that moment has passed.
        A file that has grown, or lost bytes that were not committed, counts as changed five seconds after it was
        mapped: by its times alone, a change of committed bytes beside the growth cannot be told from the growth.

        Raises:
            DamagedError: it is, and was cut off: to read behind its end would end the process.

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
        """Seconds of the last look."""

    def expire(self) -> None:
        """Look again as soon as it is asked for."""
        self._due = 0.0

    def look(self, arrays: Iterable["np.ndarray[Any, Any]"]) -> bool:
        """Return whether the files under these arrays are the ones of their names, or were so a moment ago.

        Raises:
            DamagedError: one of them was cut off, as far as was looked.

        """
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
    """Return the map that an array is a view of."""
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
            else "check its file system"
        )
        raise DiskError(f"{path} cannot be mapped into memory ({os.strerror(number)}): {advice}")
    return int(address)
