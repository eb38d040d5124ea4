"""One writer per partition."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.errors import LockedError
from tokenmill.store.lock import PartitionLock

HOLD = """
import sys, time
from pathlib import Path
from tokenmill.store.lock import PartitionLock
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
