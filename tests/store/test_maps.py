"""Files in memory: maps of them, and parts that are brought there."""

import ctypes
import errno
import gc
import os
import time
from collections.abc import Callable, Iterator
from ctypes import c_uint64
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.conftest import MEMORY
from tokenmill.errors import DamagedError, DiskError
from tokenmill.store import MapWatch, maps
from tokenmill.store.maps import FileMap, FileRange, is_cached, read_pieces, read_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file of 10,000 bytes, three pages, where a segment would be."""
    path = tmp_path / "000000000000.bin"
    path.write_bytes(bytes(range(250)) * 40)
    settle(path)
    return path


def settle(path: Path) -> None:
    """Wait until a change of a file would give it another time."""
    while not maps.is_settled((0, 0, 0, path.stat().st_ctime_ns)):
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(maps, "_LOOK_SHARE", 0)


def _maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.slow
def test_a_map_is_the_file_and_holds_no_descriptor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    file = FileMap(path, 1)
    whole = np.asarray(file)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - a count
    assert whole.tobytes() == path.read_bytes()
    assert not whole.flags.writeable
    part = whole[5000:].view(np.uint16).reshape(2, -1)[1:]
    del file, whole
    gc.collect()
    assert part.tobytes() == path.read_bytes()[7500:]
    assert _maps_of(path) == 1
    del part
    gc.collect()
    assert _maps_of(path) == 0


def test_what_is_missing_or_too_short_is_not_mapped(path: Path) -> None:
    with pytest.raises(DamagedError, match=r"000\.bin: it has 10000 bytes, but 10001 were committed"):
        FileMap(path, 10_001)
    path.unlink()
    with pytest.raises(DamagedError, match=r"000\.bin: it is missing"):
        FileMap(path, 1)


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOMEM, "vm.max_map_count"), (errno.ENODEV, "copy the store"), (errno.EACCES, "check its file system")],
)
def test_what_the_system_does_not_map_is_an_error_of_ours(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return int(maps._FAILED or 0)

    monkeypatch.setattr(maps, "_mmap", refuse)
    with pytest.raises(DiskError, match=rf"000\.bin cannot be mapped .*{os.strerror(number)}.*{advice}"):
        FileMap(path, 1)


def test_a_file_that_was_cut_off_is_named_before_it_is_read(path: Path) -> None:
    """What is committed must be there: a tail beyond that may go, as it does when a writer recovers."""
    array = np.asarray(FileMap(path, 9000))[:10]
    watch = MapWatch()
    assert watch.look([array])
    os.truncate(path, 9000)
    assert watch.look([array])
    os.truncate(path, 8999)
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"000\.bin: it has 8999 bytes, but 9000 were committed"):
            watch.look([np.empty(3), array])


def test_a_file_that_was_replaced_or_removed_can_still_be_read(path: Path) -> None:
    array = np.asarray(FileMap(path, 10_000))
    path.unlink()
    assert MapWatch().look([array])
    path.write_bytes(b"short")
    assert not MapWatch().look([array])
    assert array[249] == 249


@pytest.mark.parametrize("size", [9_500, 10_004])
def test_a_file_that_grew_is_used_for_a_while_and_then_mapped_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Not at each commit of its writer; nor for ever, for bytes that were committed may have been changed as well."""
    now = 100.0
    monkeypatch.setattr(maps, "monotonic", lambda: now)
    array = np.asarray(FileMap(path, 9_000))
    os.truncate(path, size)
    assert MapWatch().look([array])
    now = 104.9
    assert MapWatch().look([array])
    now = 105.0
    assert not MapWatch().look([array])
    settle(path)
    array = np.asarray(FileMap(path, 9_000))
    now = 200.0
    assert MapWatch().look([array])


def test_a_file_that_was_changed_in_place_is_another_one(path: Path) -> None:
    array = np.asarray(FileMap(path, 10_000))
    changed = path.stat().st_ctime_ns
    with path.open("r+b") as file:
        while path.stat().st_ctime_ns == changed:  # as long as the kernel's clock has not gone on
            file.seek(0)
            file.write(b"x")
            file.flush()
    assert not MapWatch().look([array])


def _in_ticks(call: Callable[..., os.stat_result]) -> Callable[..., SimpleNamespace]:
    """Give a file's time of change as kernels before 6.13 do, whose clock goes on a hundred times a second."""

    def seen(of: int | Path) -> SimpleNamespace:
        found = call(of)
        named = {name: getattr(found, name) for name in ("st_dev", "st_ino", "st_size", "st_mode")}
        return SimpleNamespace(**named, st_ctime_ns=found.st_ctime_ns // 10_000_000 * 10_000_000)

    return seen


def test_a_change_in_the_moment_of_mapping_is_seen_though_the_time_of_the_file_is_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a segment has it whose writer was killed, and that was changed before the kernel's clock had gone on."""
    monkeypatch.setattr(os, "fstat", _in_ticks(os.fstat))
    monkeypatch.setattr(Path, "stat", _in_ticks(Path.stat))
    changed = -1
    while changed != path.stat().st_ctime_ns:
        path.write_bytes(bytes(10_000))
        file = FileMap(path, 10_000)
        changed = file.identity[-1]
        with path.open("r+b") as changing:
            changing.write(b"x")
    settle(path)
    assert not file.is_current()
    assert FileMap(path, 10_000).is_current()


def test_looking_takes_a_bounded_part_of_the_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again before a while has passed, and after a longer one where looks take longer; unless it is told to.

    A single one that took longer counts for nothing: the process may have waited for a processor.
    """
    array = np.asarray(FileMap(path, 10_000))
    times = iter([100.0, 103.0, 107.9, 108.0, 110.0, 150.0, 309.9, 310.0, 310.0, 310.1])
    monkeypatch.setattr(maps, "monotonic", lambda: next(times))
    monkeypatch.setattr(maps, "_LOOK_SECONDS", 5)
    monkeypatch.setattr(maps, "_LOOK_SHARE", 100)
    watch = MapWatch()
    assert watch.look([array])  # takes 3 seconds, as none did before
    assert watch.look([array])  # at 107.9
    assert watch.look([array])  # at 108.0: takes 2 seconds
    os.truncate(path, 1)
    assert watch.look([array])  # at 150.0: the last two took 2 seconds and more, and the next one is due at 310.0
    assert watch.look([array])  # at 309.9
    with pytest.raises(DamagedError):
        watch.look([array])
    watch.expire()
    with pytest.raises(DamagedError):
        watch.look([array])


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "is_cached", lambda *_: False)


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


def test_a_part_is_read_in_pieces(path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PIECE_BYTES", 4096)
    assert list(read_pieces(FileRange(path, 1000, 9000))) == [4096, 3904]
    assert list(read_pieces(FileRange(path, 9000, 1 << 62))) == [1000]
    assert list(read_pieces(FileRange(path, 10_000, 20_000))) == []
    assert asked == [(1000, 4096), (5096, 3904), (9000, 1000)]


def test_small_parts_are_read_by_themselves(path: Path, tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    parts = [FileRange(path, at, at + 10) for at in range(0, 6000, 10)]
    read_small([*parts, FileRange(tmp_path / "missing", 0, 10), FileRange(path, 9995, 10_005)])
    assert asked == [(part.first, 10) for part in parts] + [(9995, 5)]


def test_a_file_that_is_missing_or_cut_off_has_no_bytes(path: Path, tmp_path: Path) -> None:
    """Who reads it by other means will say so. What is no file is refused: a FIFO is not waited for."""
    assert list(read_pieces(FileRange(tmp_path / "missing", 0, 10))) == []
    pieces = read_pieces(FileRange(path, 0, 10_000))
    path.write_bytes(b"")
    assert list(pieces) == []
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DamagedError, match="is no file"):
        list(read_pieces(FileRange(tmp_path / "fifo", 0, 10)))


def test_a_file_system_that_cannot_send_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what says that this way is closed is answered by the other; a disk error is one."""
    monkeypatch.setattr(os, "sendfile", Mock(side_effect=OSError(errno.EINVAL, "Invalid argument")))
    assert list(read_pieces(FileRange(path, 0, 10_000))) == [10_000]
    monkeypatch.setattr(os, "sendfile", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
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
    monkeypatch.setattr(maps, "is_cached", is_cached)
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
    monkeypatch.setattr(maps, "_syscall", lambda *_: -1)
    with pytest.raises(AttributeError, match="sendfile"):
        list(read_pieces(FileRange(path, 1, 10)))


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no file system in memory here")
def test_a_file_that_is_in_memory_alone_is_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file system cannot say which pages are still being read, for none ever are."""
    monkeypatch.setattr(maps, "is_cached", is_cached)
    with NamedTemporaryFile(dir=MEMORY) as file:
        file.write(bytes(1 << 20))
        file.flush()
        if maps._syscall(maps._CACHESTAT, file.fileno(), (c_uint64 * 2)(), (c_uint64 * 5)(), 0):
            pytest.skip("this system does not say what is in memory")
        monkeypatch.delattr(os, "sendfile")
        assert list(read_pieces(FileRange(Path(file.name), 0, 1 << 20))) == [1 << 20]
