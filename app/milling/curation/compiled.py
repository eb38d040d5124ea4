"""How this package's kernels are compiled: to machine code when first called, by numba, and kept on disk.

Compiling all of them takes a minute; a process that finds the code loads it in a second. Kernels run outside the
interpreter's lock.
"""

import fcntl
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from stat import S_ISLNK, S_IWGRP, S_IWOTH
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

import numba

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
"""The reference decides: the text's words are not certain, or a rule would divide by zero."""
