"""Files as they are on disk, decompressed while they are read."""

import io
import lzma
import sys
import zlib
from bz2 import BZ2Decompressor
from collections.abc import Callable, Iterator
from functools import partial
from gzip import GzipFile
from importlib import import_module
from pathlib import PurePath
from typing import Any, Final
from zipfile import BadZipFile

from tokenmill.errors import InputError

from .items import MEMORY_BYTES, library

_SKIPPED_BYTES: Final = 1 << 20
"""Bytes made at once on the way to a position."""
BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""
MORE_MEMORY: Final = "--unpack-memory 2GiB allows more"
"""What to do then; no file of zstd takes more than that."""
_LEAST_WINDOW: Final = 10
"""Power of two of the smallest window of zstd."""
_XZ_PADDING: Final = 4
"""Zero bytes may follow a stream, in fours (the .xz file format, 2.2)."""


class Made(io.RawIOBase):
    """A stream of the pieces that are made of another one, from its beginning on only: going back makes them again."""

    def __init__(self, source: Any, make: Callable[[Any], Iterator[bytes]], at: int = 0) -> None:
        """Take what makes pieces of ``source``, None where that can be read once; it is at byte ``at`` now."""
        self._source = source
        self._make = make
        self._pieces = make(source)
        self._error: Exception | None = None
        self._rest = memoryview(b"")
        self._at = at

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that it is, slowly."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read from one piece, so that damage after it is met only when it has been read; and then each time."""
        if self._error is not None:
            raise self._error
        try:
            self._rest = self._rest or memoryview(next(self._pieces, b""))
        except InputError:  # it ends the run
            raise
        except Exception as error:
            self._error = error
            raise
        size = min(len(self._rest), len(buffer))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        self._at += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, or to the end of a shorter stream."""
        if whence == io.SEEK_END:
            self._skip(None)
        target = offset + (0 if whence == io.SEEK_SET else self._at)
        if target < self._at:
            if self._source is None:
                raise OSError("what is piped in can be read once, in order: name the file")
            self._source.seek(0)
            self._pieces, self._error, self._rest, self._at = self._make(self._source), None, memoryview(b""), 0
        self._skip(target)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def _skip(self, target: int | None) -> None:
        buffer = memoryview(bytearray(_SKIPPED_BYTES))
        while target is None or self._at < target:
            if not self.readinto(buffer if target is None else buffer[: target - self._at]):
                return


def pieces_of(stream: Any) -> Iterator[bytes]:
    """Return what is read of a stream, step by step."""
    return iter(partial(stream.read1, BUFFER_BYTES), b"")


# The standard library has zstd from Python 3.14 on; before, its backport is the same module.
ZSTD: Final[Any] = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

DAMAGE: Final = (OSError, EOFError, zlib.error, ZSTD.ZstdError, lzma.LZMAError, BadZipFile)
"""What reading raises when a file cannot be read, is cut off, or is damaged."""


def _unpacked(new: Callable[[int], Any], padding: int, memory: int, raw: "io.BufferedReader[Any]") -> Iterator[bytes]:
    """Yield the content of compressed streams, one after the other.

    The library's own files take anything after a stream that is no stream for the end, even padding between streams.
    """
    packed = new(memory)
    while True:
        data = b""
        if packed.eof:
            if not (data := _next_stream(raw, packed.unused_data, padding)):
                return
            packed = new(memory)
        elif packed.needs_input and not (data := raw.read1(BUFFER_BYTES)):
            raise EOFError("a compressed stream is cut off")
        try:
            made = packed.decompress(data, BUFFER_BYTES)
        except (ZSTD.ZstdError, lzma.LZMAError) as error:
            if "dictionary" in str(error).lower():
                raise OSError("a dictionary is needed to unpack it: unpack it with `zstd -d -D DICTIONARY`") from error
            if "memory" not in str(error).lower():
                raise
            raise OSError(f"unpacking takes over {memory:,} bytes of memory: {MORE_MEMORY}") from error
        if made:
            yield bytes(made)


def _next_stream(raw: "io.BufferedReader[Any]", data: bytes, padding: int) -> bytes:
    """Return the first bytes of the next stream, none if there is no other; ``data`` follows the one before."""
    zeros = 0
    while data or (data := raw.read1(BUFFER_BYTES)):
        rest = data.lstrip(b"\0") if padding else data
        zeros += len(data) - len(rest)
        if data := rest:
            break
    if padding and zeros % padding:
        raise OSError(f"{zeros} zero bytes behind a compressed stream")
    return bytes(data)


def _zstd(memory: int) -> Any:
    most = min(memory.bit_length() - 1, ZSTD.DecompressionParameter.window_log_max.bounds()[1])
    return ZSTD.ZstdDecompressor(options={ZSTD.DecompressionParameter.window_log_max: max(_LEAST_WINDOW, most)})


def _streams(new: Callable[[int], Any], padding: int = 0) -> "Opener":
    return lambda raw, memory: io.BufferedReader(Made(raw, partial(_unpacked, new, padding, memory)), BUFFER_BYTES)


def _lz4(raw: Any) -> Any:
    return library("pyarrow", "produce", "reading lz4").CompressedInputStream(in_steps(raw), "lz4")  # closes it


Opener = Callable[[Any, int], "io.BufferedReader[Any]"]
_OPENERS: Final[dict[str, Opener]] = {
    ".gz": lambda raw, _: in_steps(raw, lambda raw: GzipFile(fileobj=raw)),
    ".zst": _streams(_zstd),
    ".bz2": _streams(lambda _: BZ2Decompressor()),
    ".xz": _streams(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), _XZ_PADDING),
    ".lzma": _streams(partial(lzma.LZMADecompressor, lzma.FORMAT_ALONE)),
    ".lz4": lambda raw, _: in_steps(raw, _lz4),
}
SUFFIXES: Final = tuple(_OPENERS)


def decompressed(raw: "io.BufferedReader[Any]", suffix: str, memory: int = MEMORY_BYTES) -> "io.BufferedReader[Any]":
    """Return the stream of what is in ``raw``, by its suffix; any other suffix is not compressed.

    It reads several compressed members, one after the other, and raises one of `DAMAGE` where the last is cut off, or
    where more than ``memory`` bytes would be needed.
    """
    if suffix not in _OPENERS:
        return raw
    if not raw.peek(1):
        raise EOFError("it is empty, and no compressed file is")
    return _OPENERS[suffix](raw, memory)


def in_steps(raw: Any, new: Callable[[Any], Any] = lambda raw: raw) -> "io.BufferedReader[Any]":
    """Return the stream of what a library makes of ``raw``; it raises nothing before all that is well has been read."""
    return io.BufferedReader(Made(raw, lambda raw: pieces_of(new(raw))), BUFFER_BYTES)


def suffixes_of(name: str) -> tuple[str, str]:
    """Return what a file's name says: the suffix of what it holds, and that of the compression around it, if any."""
    path = PurePath(name)
    outer = path.suffix.lower()
    return (PurePath(path.stem).suffix, outer) if outer in _OPENERS else (path.suffix, "")
