"""Files as they lie on disk, decompressed while they are read."""

import io
import sys
import zlib
from gzip import GzipFile
from importlib import import_module
from typing import Any, BinaryIO, Final, cast

# The standard library has zstd from Python 3.14 on; before, its backport is the same module.
_zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""
SUFFIXES: Final = (".gz", ".zst")
DAMAGE: Final = (OSError, EOFError, zlib.error, _zstd.ZstdError)
"""What reading raises when a file cannot be read, is cut off, or is damaged."""


def decompressed(raw: BinaryIO, suffix: str) -> BinaryIO:
    """Return the stream of what is in ``raw``, by its suffix; any other suffix is not compressed.

    It reads several compressed members behind each other, and raises one of `DAMAGE` where the last is cut off.
    """
    if suffix == ".gz":
        return cast("BinaryIO", io.BufferedReader(GzipFile(fileobj=raw), BUFFER_BYTES))
    if suffix == ".zst":
        return cast("BinaryIO", io.BufferedReader(_zstd.ZstdFile(raw), BUFFER_BYTES))
    return raw
