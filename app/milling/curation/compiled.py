"""How this package's kernels are compiled: to machine code when first called, by numba, and kept on disk.

Compiling all of them takes a minute; a process that finds the code loads it in a second. Kernels run outside the
interpreter's lock.

Also strings of bytes within an array, which kernels hash and compare eight bytes at a time. An array that is read so
has `PADDING` bytes more than its strings.
"""

import fcntl
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from stat import S_ISLNK, S_IWGRP, S_IWOTH
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

log = logging.getLogger(__name__)
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Return ``function`` as machine code. Division by zero gives infinity or NaN, as in numpy.

    A kernel makes no arrays, and does not count references to those that it is given: its caller holds them. Counting
    takes an atomic instruction for each array of each tuple in each call, which was half of the kernels' time.
    """
    folder = kernel_folder()
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")
    try:
        kernel: Kernel = numba.njit(nogil=True, cache=folder is not None, error_model="numpy", _nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = before
    return kernel


@cache
def kernel_folder() -> Path | None:
    """Return the folder for the machine code of these sources; None where no folder can be written.

    It is in ``NUMBA_CACHE_DIR`` where that is set; else in ``__pycache__`` beside the sources; else, where that may
    not be written to, in ``~/.cache/tokenmill``, with what is in the other one, which an image brings. Its name has the
    hash of all sources, for numba looks only at the file that a kernel is in, and not at those of functions that it
    calls.
    """
    here = Path(__file__).parent
    sources = (file.name.encode() + file.read_bytes() for file in sorted(here.glob("*.py")))
    name = "kernels-" + sha256(b"".join(sources)).hexdigest()[:16]
    brought = here / "__pycache__" / name
    if os.environ.get("NUMBA_CACHE_DIR"):
        return _writable(Path(os.environ["NUMBA_CACHE_DIR"]) / name)
    if _writable(brought):
        return brought
    own = Path("~/.cache/tokenmill").expanduser() / name
    if brought.is_dir() and not own.exists() and _is_ours(brought):
        with suppress(OSError):  # then they are compiled again
            copytree(brought, own)
    return _writable(own)


@contextmanager
def compiling_once(names: Collection[str]) -> Iterator[None]:
    """Call the kernels of these steps for the first time: one process after the other, until one of them is through.

    Workers of a host start together, and each would compile the same code for a minute. Once it is kept, none waits.
    """
    folder = kernel_folder()
    if not are_kept(names):
        log.warning("filters are compiled for this machine (or another process does that): about a minute, once")
    if folder is None or are_kept(names):
        yield
        return
    with (folder / "lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks: then each compiles by itself
            fcntl.flock(lock, fcntl.LOCK_EX)
        with _ended_by_ctrl_c():
            yield
        for name in names:
            _mark(folder, name).touch()


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end this process at once where it would raise KeyboardInterrupt.

    Raised in a callback of LLVM's, it would be lost, and numba fail over code that is not there. Nothing is half done:
    a kernel's code is kept whole or not at all.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def are_kept(names: Collection[str]) -> bool:
    """Return whether a process of this host has compiled the kernels of these steps, and kept their code."""
    folder = kernel_folder()
    return folder is not None and all(_mark(folder, name).exists() for name in names)


def _mark(folder: Path, name: str) -> Path:
    return folder / f"{name}.compiled"


def _writable(folder: Path) -> Path | None:
    """Make the folder and return it, if files can be written into it, and all files there are this user's."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder if _is_ours(folder) else None


def _is_ours(folder: Path) -> bool:
    """Return whether only this user can have put anything in a folder, or can change it: it is code that is run.

    A folder for all, as NUMBA_CACHE_DIR may name one, does not promise that. Who owns our sources could as well change
    these; the own group may write, for it is the user's alone where new files are made so.
    """
    known = {os.geteuid(), 0, Path(__file__).parent.stat().st_uid}
    try:
        places = [(place, place.lstat()) for place in (folder, *folder.rglob("*"))]
    except OSError:
        return False
    for place, status in places:
        others = S_IWOTH if status.st_gid in {os.getegid(), 0} else S_IWOTH | S_IWGRP
        if status.st_uid not in known or S_ISLNK(status.st_mode) or status.st_mode & others:
            log.warning("%s is not used: another user could have changed %s, which is code", folder, place)
            return False
    return True


KEEP: Final = 0
ASK: Final = -1
"""Verdicts beside a reason's: the reference decides, for words are not certain, or a rule would divide by zero."""
PADDING: Final = 8

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Verdicts = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_LAST_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_SHIFT: Final = np.uint64(32)
_ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)


def laid_out(strings: Sequence[bytes]) -> tuple[Bytes, Numbers]:
    """Return strings as kernels read them, one after the other, and their bounds; shape ``[strings + 1]``."""
    data = np.frombuffer(bytearray().join((*strings, bytes(PADDING))), np.uint8)  # of the kernels' one type
    return data, np.cumsum([0, *map(len, strings)], dtype=np.int64)


@intrinsic  # type: ignore[untyped-decorator]
def eight_bytes(_context: Any, data: Any, at: Any) -> Any:  # noqa: ARG001 - numba looks at its type
    """Return ``data[at : at + 8]`` as a little-endian number, wherever it begins."""

    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        number = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        number.align = 1
        return number

    return types.uint64(data, types.intp), load


@compiled
def hash_bytes(data: Bytes, begin: int, end: int, seed: np.uint64) -> np.uint64:
    """Return a hash of ``data[begin:end]``: multiply and fold, 64 bits at a time."""
    value = seed ^ (np.uint64(end - begin) * _LAST_FACTOR)
    at = begin
    while at + 8 <= end:
        value = (value ^ eight_bytes(data, at)) * _FACTOR
        value ^= value >> _SHIFT
        at += 8
    if at < end:
        rest = eight_bytes(data, at) & (_ALL >> np.uint64(8 * (8 - (end - at))))
        value = (value ^ rest) * _FACTOR
        value ^= value >> _SHIFT
    value *= _LAST_FACTOR
    return value ^ (value >> _SHIFT)


@compiled
def equal_bytes(one: Bytes, at: int, other: Bytes, place: int, size: int) -> bool:
    """Return whether ``one[at : at + size]`` and ``other[place : place + size]`` are the same bytes."""
    done = 0
    while done + 8 <= size:
        if eight_bytes(one, at + done) != eight_bytes(other, place + done):
            return False
        done += 8
    if done == size:
        return True
    difference = eight_bytes(one, at + done) ^ eight_bytes(other, place + done)
    return (difference & (_ALL >> np.uint64(8 * (8 - (size - done))))) == np.uint64(0)


@compiled
def character_at(data: Bytes, at: int) -> tuple[int, int]:
    """Return the code point of the character that begins at ``at`` in UTF-8, and its bytes."""
    value = np.int32(data[at])
    size = 1 if value < 0x80 else (2 if value < 0xE0 else (3 if value < 0xF0 else 4))
    if size > 1:
        value &= 0x1F if size == 2 else (0x0F if size == 3 else 0x07)
        for byte in range(at + 1, at + size):
            value = (value << 6) | np.int32(data[byte] & 0x3F)
    return int(value), size


@compiled
def polynomial(data: Bytes, begin: int, end: int, base: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a hash of ``data[begin:end]`` by which those of strings in a row can be joined, and the power for that.

    The hash of two strings in a row is the first one's times the second one's power plus the second one's, in 64 bits.
    """
    value, power = np.uint64(0), np.uint64(1)
    for at in range(begin, end):
        value = value * base + np.uint64(data[at]) + np.uint64(1)
        power *= base
    return value, power
