"""One writer per partition."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.chains import STREAM, fill, make_chain, make_info, make_store
from tokenmill.errors import LockedError, StoreError
from tokenmill.exports.folder import ExportFolder
from tokenmill.store import StoreLock
from tokenmill.store.layout import PartitionLock
from tokenmill.store.retiring import retire

HOLD = """
import sys, time
from pathlib import Path
from tokenmill.store.layout import PartitionLock
lock = PartitionLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    """Also within one process."""
    with PartitionLock(tmp_path), pytest.raises(LockedError, match=f"process {os.getpid()}"):
        PartitionLock(tmp_path)


def test_a_lock_that_was_given_back_can_be_taken(tmp_path: Path) -> None:
    """Closing twice harms nobody."""
    lock = PartitionLock(tmp_path)
    lock.close()
    lock.close()
    PartitionLock(tmp_path).close()


def test_the_lock_of_a_stopped_process_holds_until_it_is_killed(tmp_path: Path) -> None:
    """A stopped process keeps its lock; the system ends the lock with its process."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(LockedError, match=f"process {process.pid}"):
                PartitionLock(tmp_path)
        finally:
            process.kill()
    PartitionLock(tmp_path).close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """By all that write: Lustre without ``-o flock``, some FUSE, and NFS, on which no directory can be locked."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    info = make_info()
    store = make_store(tmp_path / "store", info)
    fill(store, info, make_chain(info, 9), [9])
    monkeypatch.setattr(fcntl, "flock", flock)
    for take in (
        lambda: PartitionLock(tmp_path),
        lambda: StoreLock(store.path, exclusive=True),
        lambda: fill(store, info, make_chain(info, 10), [10]),
        lambda: retire(store.path, STREAM, 0, 4),
        lambda: ExportFolder(tmp_path / "export", {}),
    ):
        with pytest.raises(StoreError, match=r"cannot be locked \(.*\): its file system has no flock.* -o flock"):
            take()
