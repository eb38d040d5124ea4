"""Files as they are on disk, decompressed while they are read; text in other encodings, turned into UTF-8."""

import codecs
import io
import lzma
import sys
import zlib
from abc import abstractmethod
from bz2 import BZ2Decompressor
from collections.abc import Callable
from gzip import GzipFile
from importlib import import_module
from pathlib import PurePath
from typing import Any, Final
from zipfile import BadZipFile

from tokenmill.errors import InputError

_SKIPPED_BYTES: Final = 1 << 20
"""Bytes made at once on the way to a position."""
BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""
XZ_MEMORY_BYTES: Final = 256 << 20
"""Memory that an xz file may demand of its reader; `xz -9` takes 65 MiB."""
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


class _Streams(ForwardStream):
    """The content of compressed streams, one after the other.

    The library's own files take anything after a stream that is no stream for the end, even padding between streams.
    """

    def __init__(self, raw: "io.BufferedReader[Any]", new: Callable[[], Any], padding: int = 0) -> None:
        super().__init__()
        self._raw = raw
        self._new = new
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
            if made := self._decompressor.decompress(data, size):
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


_OPENERS: Final[dict[str, Callable[[Any], "io.BufferedReader[Any]"]]] = {
    ".gz": lambda raw: in_steps(GzipFile(fileobj=raw)),
    ".zst": lambda raw: in_steps(ZSTD.ZstdFile(raw)),
    ".bz2": lambda raw: io.BufferedReader(_Streams(raw, BZ2Decompressor), BUFFER_BYTES),
    ".xz": lambda raw: io.BufferedReader(_Streams(raw, _xz, _XZ_PADDING), BUFFER_BYTES),
}
SUFFIXES: Final = tuple(_OPENERS)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES)


def decompressed(raw: "io.BufferedReader[Any]", suffix: str) -> "io.BufferedReader[Any]":
    """Return the stream of what is in ``raw``, by its suffix; any other suffix is not compressed.

    It reads several compressed members, one after the other, and raises one of `DAMAGE` where the last is cut off.
    """
    return _OPENERS[suffix](raw) if suffix in _OPENERS else raw


def in_steps(packed: Any) -> "io.BufferedReader[Any]":
    """Return the stream of what a library decompresses; it raises nothing before all that is well has been read."""
    return io.BufferedReader(_Steps(packed), BUFFER_BYTES)


def suffixes_of(name: str) -> tuple[str, str]:
    """Return what a file's name says: the suffix of what it holds, and that of the compression around it, if any."""
    path = PurePath(name)
    outer = path.suffix.lower()
    return (PurePath(path.stem).suffix, outer) if outer in _OPENERS else (path.suffix, "")


class _Steps(io.RawIOBase):
    """Gives what one step of decompression gives, so that damage is met only when all before it has been read."""

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


UTF_8: Final = "utf-8"
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks that UTF-8 never begins with. Readers of text handle UTF-8's own mark by themselves."""
_NONE: Final = "\udc80"
"""Instead of an invalid character: it is no UTF-8, so decoding its line fails."""
_HANDLER: Final = "tokenmill.produce.no-character"


def _no_character(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeDecodeError):
        return _NONE, error.end
    raise error


codecs.register_error(_HANDLER, _no_character)


def known_encoding(name: str) -> str:
    """Return Python's name of an encoding.

    Raises:
        InputError: Python knows no text encoding of that name.

    """
    try:
        "a".encode(name)
        codecs.getincrementaldecoder(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError) as error:
        raise InputError(f"--encoding {name}: {error}; for example: utf-16, latin-1, cp1252, gb18030") from error


def encoding_of(stream: "io.BufferedReader[Any]") -> str:
    """Return the encoding that the byte order mark at the beginning of a stream names; without one, UTF-8."""
    head = stream.peek(len(codecs.BOM_UTF32_LE))[: len(codecs.BOM_UTF32_LE)]
    return next((name for mark, name in _MARKS if head.startswith(mark)), UTF_8)


def recoded(stream: "io.BufferedReader[Any]", encoding: str) -> "io.BufferedReader[Any]":
    """Return the text in UTF-8; an invalid character becomes invalid UTF-8. UTF-8 stays as it is."""
    return stream if encoding == UTF_8 else io.BufferedReader(_Recoded(stream, encoding), BUFFER_BYTES)


def why_not(encoding: str, data: bytes, error: UnicodeDecodeError) -> str:
    """Return why recoded data is no UTF-8, by the ``error`` of decoding it."""
    if encoding == UTF_8:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    return f"not {encoding}: character {len(data[: error.start].decode()) + 1} is none"


class _Recoded(ForwardStream):
    """Decodes and encodes again, block by block."""

    def __init__(self, stream: "io.BufferedReader[Any]", encoding: str) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)
        self._ended = False

    def _more(self, size: int) -> bytes:
        made = ""
        while not made and not self._ended:
            data = self._stream.read1(size)
            self._ended = not data
            try:
                made = self._decoder.decode(data, final=self._ended)
            except UnicodeError as error:  # where it is not about a character: there is no byte order mark
                raise OSError(f"{error}: name the encoding that needs none, for example utf-16-le") from error
        return made.encode("utf-8", "surrogatepass")

    def _restart(self) -> None:
        self._stream.seek(0)
        self._decoder.reset()
        self._ended = False
