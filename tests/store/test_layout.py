"""Names and paths in a store."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.store.chains import STREAM, fill, filled_store, make_chain, make_info
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.export.exporting import ExportFolder
from tokenmill.errors import DiskError, LockedError, StoreError
from tokenmill.store import StoreLock
from tokenmill.store.layout import (
    PartitionLock,
    SegmentPaths,
    blaming,
    partition_directory,
    partition_numbers,
    put_file,
    segment_firsts,
    write_at,
)


def test_segments_and_partitions_are_found_by_their_names() -> None:
    paths = SegmentPaths(Path("/s/0"), 4096)
    assert paths.tokens == Path("/s/0/000000004096.bin")
    assert paths.manifest == Path("/s/0/000000004096.json")

    # a segment exists from its first file on; other names are none of the store's
    names = ["lock", "000000004096.docs", "000000000000.bin", "000000000000.json", "5.bin", "000000000000.json.tmp"]
    assert segment_firsts(names) == [0, 4096]
    assert partition_numbers(["stream.json", "10", "2", "02", "x"]) == [2, 10]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "x" * 250])
def test_a_stream_name_never_leads_elsewhere(name: str) -> None:
    """Only what a Kafka topic could be called becomes a directory."""
    with pytest.raises(StoreError, match="no stream name"):
        partition_directory(Path("/s"), name, 0)


def test_a_file_is_put_whole_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename comes after the sync, never before."""
    put_file(tmp_path / "a.json", b"old and longer")
    put_file(tmp_path / "a.json", b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.json", b"new")]
    monkeypatch.setattr(os, "fdatasync", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        put_file(tmp_path / "a.json", b"newer")
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:3], offset))
    with (tmp_path / "x").open("wb") as file:
        write_at(file.fileno(), b"0123456789", 5)
    assert (tmp_path / "x").read_bytes() == bytes(5) + b"0123456789"


HOLD = """
import sys, time
from pathlib import Path
from tokenmill.store.layout import PartitionLock
lock = PartitionLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_what_a_directory_needs_is_said() -> None:
    for number, advice in ((errno.EACCES, "Let this user write there: a"), (errno.ENOSPC, "Make room, ")):
        with pytest.raises(DiskError, match=advice), blaming(Path("store")):
            raise OSError(number, "some words")


def test_a_second_writer_is_told_who_holds_the_directory_until_it_is_given_back(tmp_path: Path) -> None:
    with PartitionLock(tmp_path) as lock, pytest.raises(LockedError, match=f"process {os.getpid()}"):
        PartitionLock(tmp_path)
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
    info = make_info()
    store = filled_store(tmp_path / "store", info, make_chain(info, 9), [9])
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
    for take in (
        lambda: PartitionLock(tmp_path),
        lambda: StoreLock(store.path, exclusive=True),
        lambda: fill(store, info, make_chain(info, 10), [10]),
        lambda: retire(store.path, STREAM, 0, 4),
        lambda: ExportFolder(tmp_path / "export", {}),
    ):
        with pytest.raises(StoreError, match=r"cannot be locked \(.*\): its file system has no flock.* -o flock"):
            take()
