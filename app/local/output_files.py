"""Files to write: places that a person named, tried before minutes of work; files that only their owner can read."""

import errno
import os
import tempfile
from pathlib import Path

from tokenmill.errors import InputError


def require_directory(flag: str, path: Path) -> None:
    """Make the directory if need be; on return files can be written there.

    Raises InputError where something else is there, or above it, or this user may not write there; names the flag.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"{flag} {path} {_why(error, path)}: name a directory, new or old, to write to") from error


def require_file(flag: str, path: Path) -> None:
    """Make the directory of a file if need be; on return the file can be written, and is unchanged.

    Raises InputError where the path is a directory, or cannot be written; names the flag.
    """
    if path.is_dir():
        raise InputError(f"{flag} {path} is a directory: name the file to write")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"{flag} {path} may not be written by this user: name another file, or change its rights")
    require_directory(f"{flag} {path}:", path.parent)


def _why(error: OSError, path: Path) -> str:
    if error.errno in {errno.EEXIST, errno.ENOTDIR}:
        found = next((place for place in (path, *path.parents) if place.exists()), path)
        return f"is no directory, for {found} is a file" if found != path else "is a file"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "may not be written to by this user"
    return f"cannot be written to ({error.strerror})"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, also while it is written."""
    path.unlink(missing_ok=True)  # an older file would keep its rights
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
