"""Files as they lie on disk, decompressed while they are read."""

import io
import sys
import zlib
from gzip import GzipFile
from importlib import import_module
from typing import Any, Final

# The standard library has zstd from Python 3.14 on; before, its backport is the same module.
_zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""
SUFFIXES: Final = (".gz", ".zst")
DAMAGE: Final = (OSError, EOFError, zlib.error, _zstd.ZstdError)
"""What reading raises when a file cannot be read, is cut off, or is damaged."""


def decompressed(raw: "io.BufferedReader[Any]", suffix: str) -> "io.BufferedReader[Any]":
    """Return the stream of what is in ``raw``, by its suffix; any other suffix is not compressed.

    It reads several compressed members behind each other, and raises one of `DAMAGE` where the last is cut off.
    """
    if suffix == ".gz":
        return io.BufferedReader(_Steps(GzipFile(fileobj=raw)), BUFFER_BYTES)
    if suffix == ".zst":
        return io.BufferedReader(_Steps(_zstd.ZstdFile(raw)), BUFFER_BYTES)
    return raw


class _Steps(io.RawIOBase):
    """Gives what one step of decompression gives, so that damage is met only when all before it has been taken."""

    def __init__(self, packed: Any) -> None:
        self._packed = packed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._packed.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._packed.seek(offset, whence))

    def tell(self) -> int:
        return int(self._packed.tell())
