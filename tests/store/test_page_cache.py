"""Parts of files are brought into memory: which bytes, of which files, and what is no error."""

import errno
import os
from collections.abc import Iterator
from ctypes import c_uint64
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from tests.conftest import MEMORY
from tokenmill.errors import DamagedError
from tokenmill.store import maps as page_cache
from tokenmill.store.maps import FileRange, is_cached, read_pieces, read_small


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return which bytes the system is asked to read, as it is asked: first and count."""
    found: list[tuple[int, int]] = []
    sendfile = os.sendfile

    def noted(out: int, descriptor: int, at: int, count: int) -> int:
        sent = sendfile(out, descriptor, at, count)
        found.append((at, sent))
        return sent

    monkeypatch.setattr(os, "sendfile", noted)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(10_000))
    return path


def test_a_part_is_read_in_pieces(path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "PIECE_BYTES", 4096)
    assert list(read_pieces(FileRange(path, 1000, 9000))) == [4096, 3904]
    assert list(read_pieces(FileRange(path, 9000, 1 << 62))) == [1000]
    assert list(read_pieces(FileRange(path, 10_000, 20_000))) == []
    assert asked == [(1000, 4096), (5096, 3904), (9000, 1000)]


def test_small_parts_are_read_by_themselves(path: Path, tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    parts = [FileRange(path, at, at + 10) for at in range(0, 6000, 10)]
    read_small([*parts, FileRange(tmp_path / "missing", 0, 10), FileRange(path, 9995, 10_005)])
    assert asked == [(part.first, 10) for part in parts] + [(9995, 5)]


def test_a_file_that_is_missing_or_cut_off_has_no_bytes(path: Path, tmp_path: Path) -> None:
    """Who reads it by other means will say so."""
    assert list(read_pieces(FileRange(tmp_path / "missing", 0, 10))) == []
    pieces = read_pieces(FileRange(path, 0, 10_000))
    path.write_bytes(b"")
    assert list(pieces) == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DamagedError, match="is no file"):
        list(read_pieces(FileRange(tmp_path / "fifo", 0, 10)))


def test_a_file_system_that_cannot_send_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads must not fail where it could do without."""

    def refuses(*_: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuses)
    assert list(read_pieces(FileRange(path, 0, 10_000))) == [10_000]


def test_a_disk_error_is_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what says that this way is closed is answered by the other."""

    def fails(*_: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "sendfile", fails)
    with pytest.raises(OSError, match="Input/output error"):
        list(read_pieces(FileRange(path, 0, 10_000)))


@pytest.fixture
def path_on_disk() -> Iterator[Path]:
    """Return a file in the system's temporary folder; the test needs one on a disk."""
    with NamedTemporaryFile() as file:
        yield Path(file.name)


def test_what_is_in_memory_is_not_read_again(path_on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its pages have to be there; a system that does not say so has it read."""
    path = path_on_disk
    monkeypatch.setattr(page_cache, "is_cached", is_cached)
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file:
        if not is_cached(file.fileno(), 0, 1 << 20):
            pytest.skip("this system does not say what is in memory")
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_cached(file.fileno(), 0, 1 << 20):
            pytest.skip("this file system keeps files in memory")
        assert list(read_pieces(FileRange(path, 0, 1 << 20))) == [1 << 20]
        assert is_cached(file.fileno(), 0, 1 << 20)
        assert is_cached(file.fileno(), 4095, 2)
    monkeypatch.delattr(os, "sendfile")
    assert list(read_pieces(FileRange(path, 1, 1 << 20))) == [(1 << 20) - 1]
    read_small([FileRange(path, 1, 10), FileRange(path, 5000, 5010)])
    monkeypatch.setattr(page_cache, "_syscall", lambda *_: -1)
    with pytest.raises(AttributeError, match="sendfile"):
        list(read_pieces(FileRange(path, 1, 10)))


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no file system in memory here")
def test_a_file_that_is_in_memory_alone_is_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file system cannot say which pages are still being read, for none ever are."""
    monkeypatch.setattr(page_cache, "is_cached", is_cached)
    with NamedTemporaryFile(dir=MEMORY) as file:
        file.write(bytes(1 << 20))
        file.flush()
        if page_cache._syscall(page_cache._CACHESTAT, file.fileno(), (c_uint64 * 2)(), (c_uint64 * 5)(), 0):
            pytest.skip("this system does not say what is in memory")
        monkeypatch.delattr(os, "sendfile")
        assert list(read_pieces(FileRange(Path(file.name), 0, 1 << 20))) == [1 << 20]
