"""One writer per directory: an exclusive `flock`, which the system releases when the process ends."""

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from tokenmill.errors import DamagedError, LockedError, StoreError
from tokenmill.store.layout import LOCK_FILE
from tokenmill.untrusted import open_regular, read_regular


class PartitionLock:
    """The exclusive right to write in a directory, a partition's or (eras) a stream's, until `close`.

    The lock is on the directory itself; the file ``lock`` in it names the holder for people and error messages. A
    stopped process keeps its lock.

    Raises:
        LockedError: another process (or another writer of this one) holds it.

    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            take_lock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, directory)
            _name_holder(directory / LOCK_FILE)
        except BlockingIOError:
            os.close(self._descriptor)
            raise LockedError(
                f"{directory} is being written by {_holder(directory)}; "
                "it keeps the directory until it ends, even while it is stopped: wait for it, or end it"
            ) from None
        except BaseException:  # Ctrl-C, too: nobody has the object that could let go of the directory
            os.close(self._descriptor)
            raise

    def check_place(self) -> None:
        """Check that the path still leads to the locked directory.

        Open files can be written to for ever, even where no reader would find them: in a directory that was moved away,
        or on a disk that was unmounted.

        Raises:
            OSError: the path leads nowhere, or to another directory.

        """
        if not os.path.samestat(os.fstat(self._descriptor), os.stat(self._directory)):  # noqa: PTH116 - beside fstat
            raise OSError(errno.ESTALE, "another directory is in its place", str(self._directory))

    def close(self) -> None:
        """Let other processes write there."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StoreLock:
    """The right to fill a store, until `close` or the end of the process: for one mirror, or for segment workers.

    Segment workers divide the partitions among themselves, and a mirror takes all of them; so one excludes the other.
    The lock is on the store's directory.

    Raises:
        LockedError: a process that this one excludes fills the store.

    """

    def __init__(self, store: Path, *, exclusive: bool) -> None:
        self._descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
        try:
            take_lock(self._descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB, store)
        except BlockingIOError:
            os.close(self._descriptor)
            other = "a segment worker, or another mirror," if exclusive else "a mirror"
            raise LockedError(
                f"{other} fills the store {store}, until it ends, even while it is stopped: end it, or name another "
                "directory with --store"
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Let other processes fill the store."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take_lock(descriptor: int, operation: int, path: Path) -> None:
    """Take the `flock` on an open file.

    Raises:
        BlockingIOError: another process holds it, and ``operation`` does not wait.
        StoreError: the file system has no such locks.

    """
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path} cannot be locked ({error.strerror}): its file system has no flock, and without locks two writers "
            "could damage what is there. Mount it with locks (Lustre: -o flock; NFS: -o local_lock=flock, where one "
            "host alone writes), or write to a local disk and copy from there; who only reads needs no locks"
        ) from error


def _name_holder(path: Path) -> None:
    """Write the id of this process into the lock file."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
        file.write(f"{os.getpid()}\n")


def _holder(directory: Path) -> str:
    """Return the process named in the lock file, for people."""
    try:
        return f"process {int(read_regular(directory / LOCK_FILE, most=64))}"
    except (OSError, ValueError, DamagedError):  # not written yet, or written by hand: the lock is held all the same
        return "another process"
