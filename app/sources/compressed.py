"""Files as they are on disk, decompressed while they are read."""

import io
import lzma
import sys
import zlib
from abc import abstractmethod
from bz2 import BZ2Decompressor
from collections.abc import Callable
from functools import partial
from gzip import GzipFile
from importlib import import_module
from pathlib import PurePath
from typing import Any, Final
from zipfile import BadZipFile

from .items import library

_SKIPPED_BYTES: Final = 1 << 20
"""Bytes made at once on the way to a position."""
BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""
MEMORY_BYTES: Final = 256 << 20
"""Memory that a file may demand of who unpacks it, where nobody says otherwise: `xz -9` takes 65 MiB, `zstd -19` 8 MiB,
`zstd --long=28` all of it."""
MORE_MEMORY: Final = "--unpack-memory 2GiB allows more"
"""What to do then; no file of zstd takes more than that."""
_LEAST_WINDOW: Final = 10
"""Power of two of the smallest window of zstd."""
_XZ_PADDING: Final = 4
"""Zero bytes may follow a stream, in fours (the .xz file format, 2.2)."""


class ForwardStream(io.RawIOBase):
    """A stream of what `_more` returns, made from its beginning on only: going back means making it again."""

    def __init__(self) -> None:
        self._made = memoryview(b"")
        self._at = 0

    @abstractmethod
    def _more(self, size: int) -> bytes:
        """Return the next bytes, about ``size``; none at the end."""

    @abstractmethod
    def _restart(self) -> None:
        """Go back to the beginning."""

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that it is, slowly."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what one step makes, so that damage after it is met only when it has been read."""
        if not self._made:
            self._made = memoryview(self._more(len(buffer)))
        size = min(len(self._made), len(buffer))
        buffer[:size], self._made = self._made[:size], self._made[size:]
        self._at += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, or to the end of a shorter stream."""
        if whence == io.SEEK_END:
            self._skip(None)
        target = offset + (0 if whence == io.SEEK_SET else self._at)
        if target < self._at:
            self._restart()
            self._made, self._at = memoryview(b""), 0
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


# The standard library has zstd from Python 3.14 on; before, its backport is the same module.
ZSTD: Final[Any] = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

DAMAGE: Final = (OSError, EOFError, zlib.error, ZSTD.ZstdError, lzma.LZMAError, BadZipFile)
"""What reading raises when a file cannot be read, is cut off, or is damaged."""


class _Steps(ForwardStream):
    """What one step of a library's own file gives, so that damage is met only when all before it has been read."""

    def __init__(self, raw: Any, new: Callable[[Any], Any]) -> None:
        super().__init__()
        self._raw = raw
        self._new = new
        self._packed = new(raw)

    def _more(self, size: int) -> bytes:
        return bytes(self._packed.read1(size))

    def _restart(self) -> None:
        self._raw.seek(0)
        self._packed = self._new(self._raw)


class _Streams(ForwardStream):
    """The content of compressed streams, one after the other.

    The library's own files take anything after a stream that is no stream for the end, even padding between streams.
    """

    def __init__(self, raw: "io.BufferedReader[Any]", new: Callable[[], Any], memory: int, padding: int = 0) -> None:
        super().__init__()
        self._raw = raw
        self._new = new
        self._memory = memory
        self._padding = padding
        self._decompressor = new()

    def _more(self, size: int) -> bytes:
        while True:
            data = b""
            if self._decompressor.eof:
                data = self._next_stream()
                if not data:
                    return b""
                self._decompressor = self._new()
            elif self._decompressor.needs_input and not (data := self._raw.read1(BUFFER_BYTES)):
                raise EOFError("a compressed stream is cut off")
            try:
                made = self._decompressor.decompress(data, size)
            except (ZSTD.ZstdError, lzma.LZMAError) as error:
                if "memory" not in str(error).lower():
                    raise
                raise OSError(f"unpacking takes over {self._memory:,} bytes of memory: {MORE_MEMORY}") from error
            if made:
                return bytes(made)

    def _next_stream(self) -> bytes:
        """Return the first bytes of the next stream, none if there is no other."""
        data, zeros = self._decompressor.unused_data, 0
        while True:
            if not data and not (data := self._raw.read1(BUFFER_BYTES)):
                break
            rest = data.lstrip(b"\0") if self._padding else data
            zeros += len(data) - len(rest)
            if data := rest:
                break
        if self._padding and zeros % self._padding:
            raise OSError(f"{zeros} zero bytes behind a compressed stream")
        return bytes(data)

    def _restart(self) -> None:
        self._raw.seek(0)
        self._decompressor = self._new()


def _zstd(memory: int) -> Any:
    most = min(memory.bit_length() - 1, ZSTD.DecompressionParameter.window_log_max.bounds()[1])
    return ZSTD.ZstdDecompressor(options={ZSTD.DecompressionParameter.window_log_max: max(_LEAST_WINDOW, most)})


def _streams(new: Callable[[int], Any], padding: int = 0) -> "Opener":
    return lambda raw, memory: io.BufferedReader(_Streams(raw, partial(new, memory), memory, padding), BUFFER_BYTES)


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
    return _OPENERS[suffix](raw, memory) if suffix in _OPENERS else raw


def in_steps(raw: Any, new: Callable[[Any], Any] = lambda raw: raw) -> "io.BufferedReader[Any]":
    """Return the stream of what a library makes of ``raw``; it raises nothing before all that is well has been read."""
    return io.BufferedReader(_Steps(raw, new), BUFFER_BYTES)


def suffixes_of(name: str) -> tuple[str, str]:
    """Return what a file's name says: the suffix of what it holds, and that of the compression around it, if any."""
    path = PurePath(name)
    outer = path.suffix.lower()
    return (PurePath(path.stem).suffix, outer) if outer in _OPENERS else (path.suffix, "")
