"""How files are on disk: compressed, and text in other encodings than UTF-8; both are undone while they are read."""

import codecs
import io
import lzma
import re
import sys
import zlib
from bz2 import BZ2Decompressor
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from gzip import GzipFile
from importlib import import_module
from itertools import chain
from pathlib import PurePath
from typing import Any, Final
from zipfile import BadZipFile

from tokenmill.errors import InputError

from ..milling.decoding.protocol import INVALID_UTF8
from .items import MEMORY_BYTES, library

BUFFER_BYTES: Final = 1 << 20
"""Large, because Python's own 8 KiB costs a tenth of the speed with long lines."""


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
        buffer = memoryview(bytearray(1 << 20))
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
    """Yield the content of compressed streams, also behind padding, which the library's own files take for the end."""
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
            more = "--unpack-memory 2GiB allows more"  # and no file of zstd takes more than that
            raise OSError(f"unpacking takes over {memory:,} bytes of memory: {more}") from error
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
    return ZSTD.ZstdDecompressor(options={ZSTD.DecompressionParameter.window_log_max: max(10, most)})  # zstd's own


def _streams(new: Callable[[int], Any], padding: int = 0) -> "Opener":
    return lambda raw, memory: io.BufferedReader(Made(raw, partial(_unpacked, new, padding, memory)), BUFFER_BYTES)


def _lz4(raw: Any) -> Any:
    return library("pyarrow", "produce", "reading lz4").CompressedInputStream(in_steps(raw), "lz4")  # closes it


Opener = Callable[[Any, int], "io.BufferedReader[Any]"]
_OPENERS: Final[dict[str, Opener]] = {
    ".gz": lambda raw, _: in_steps(raw, lambda raw: GzipFile(fileobj=raw)),
    ".zst": _streams(_zstd),
    ".bz2": _streams(lambda _: BZ2Decompressor()),
    ".xz": _streams(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), 4),  # zero bytes may follow, in fours
    ".lzma": _streams(partial(lzma.LZMADecompressor, lzma.FORMAT_ALONE)),
    ".lz4": lambda raw, _: in_steps(raw, _lz4),
}
SUFFIXES: Final = tuple(_OPENERS)


def decompressed(raw: "io.BufferedReader[Any]", suffix: str, memory: int = MEMORY_BYTES) -> "io.BufferedReader[Any]":
    """Return what is in ``raw``, unpacked by its suffix; reading it raises one of `DAMAGE`, also over ``memory``."""
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


UTF_8: Final = "utf-8"
_MARKS: Final = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks. Readers of text handle UTF-8's own by themselves."""
NOT_UTF_8: Final = f"not {UTF_8.upper()}"
NO_TEXT: Final = "not text: "
UNDECODED: Final = (NOT_UTF_8, NO_TEXT, INVALID_UTF8)
"""What the messages begin with for texts that may be in another encoding than anybody said."""
_NONE: Final = "\udc80"  # instead of an invalid character: it is no UTF-8, so decoding its line fails
_HANDLER: Final = "tokenmill.produce.no-character"
_NO_TEXT: Final = re.compile(r"[\0-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
_CONTROL: Final = re.compile(r"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_ISO_2022: Final = re.compile(rb"\x1b\$(?:(\)C)|[@B(])")
"""Escapes of encodings that are ASCII, byte by byte, and so UTF-8."""
_ZEROS: Final = 3  # in UTF-16, one byte of two to three is zero, all in even places, or all in odd ones
_FEW: Final = 20  # one of so many characters may be no text


def _no_character(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeDecodeError):
        return _NONE, error.end
    raise error


codecs.register_error(_HANDLER, _no_character)


def known_encoding(name: str) -> str:
    """Return Python's name of an encoding. Raises InputError where Python knows no text encoding of that name."""
    try:
        "a".encode(name)
        b"a".decode(name, "ignore")
        codecs.getincrementaldecoder(name)(_HANDLER).decode(b"a")
        return codecs.lookup(name).name
    except (LookupError, ValueError) as error:
        raise InputError(f"--encoding {name}: {error}; for example: utf-16, latin-1, cp1252, gb18030") from error


def marked_encoding(begin: bytes) -> str | None:
    """Return the encoding that the byte order mark at the beginning of a file names."""
    return next((name for mark, name in _MARKS if begin.startswith(mark)), None)


def why_no_text(data: bytes, what: str = "it") -> str:
    """Return why bytes are no text in UTF-8, whatever they would be decoded to; nothing if they may be one."""
    if b"\0" in data:
        return f"{NO_TEXT}{what} holds NUL bytes"
    return f"{NO_TEXT}{what} holds escapes of ISO-2022" if _iso_2022(data) else ""


def _iso_2022(data: bytes) -> str:
    found = _ISO_2022.search(data) if b"\x1b$" in data else None
    return "" if found is None else "iso2022_kr" if found[1] else "iso2022_jp_2"


def is_binary(data: bytes, encoding: str = UTF_8) -> bool:
    """Return whether a file or page begins as compressed and other binary data does."""
    with suppress(ValueError, LookupError):  # codecs that know no "replace"
        begin = data[:1024].decode(encoding, "replace")  # of random bytes, one in ten is a control character
        return len(_CONTROL.findall(begin)) * _FEW > len(begin)
    return False


def seems(data: bytes) -> str:
    """Return, as advice, which encoding a text seems to have that is no UTF-8, and how it reads in that."""
    data = data[: 64 << 10]
    if _NONE.encode("utf-8", "surrogatepass") in data:
        return "; it has a character that is none in the encoding that --encoding or a byte order mark says"
    name = _with_zeros(data) if b"\0" in data else _iso_2022(data) or _without_zeros(data)
    if not name:
        return ""
    text = data.decode(name, "replace")
    if not text or len(_NO_TEXT.findall(text)) * _FEW > len(text):
        return ""
    return f"; it seems to be {name}, {text[:30].strip()!a}: if so, --encoding {name}"


def _with_zeros(data: bytes) -> str:
    zeros, odd_zeros = data.count(0), data[1::2].count(0)
    if _ZEROS * zeros > 2 * len(data):
        return "utf-32-le" if data[3::4].count(0) > data[::4].count(0) else "utf-32-be"
    if _ZEROS * zeros < len(data) or _FEW * min(odd_zeros, zeros - odd_zeros) > zeros:
        return ""
    return "utf-16-le" if 2 * odd_zeros > zeros else "utf-16-be"


def _without_zeros(data: bytes) -> str:
    name = "cp1252"
    with suppress(UnicodeDecodeError):  # it is UTF-8, but for its end
        codecs.getincrementaldecoder(UTF_8)().decode(data)
        return ""
    with suppress(ModuleNotFoundError):
        name = import_module("resiliparse.parse.encoding").detect_encoding(data)
    with suppress(UnicodeDecodeError):
        name = "gb18030" if name == UTF_8 and data.decode("gb18030") else name
    same = name == UTF_8 or data.decode(name, "replace") == data.decode("cp1252", "replace")
    return "cp1252" if same else name


def recoded(stream: "io.BufferedReader[Any]", encoding: str) -> "io.BufferedReader[Any]":
    """Return the text in UTF-8; an invalid character becomes invalid UTF-8. UTF-8 stays as it is."""
    return stream if encoding == UTF_8 else io.BufferedReader(Made(stream, partial(_recoded, encoding)), BUFFER_BYTES)


def why_not(encoding: str, data: bytes, error: UnicodeDecodeError) -> str:
    """Return why recoded data is no UTF-8, by the ``error`` of decoding it."""
    if encoding == UTF_8:
        return f"{NOT_UTF_8}: {error.reason} at byte {error.start}"
    return f"not {encoding}: character {len(data[: error.start].decode()) + 1} is none"


def _recoded(encoding: str, stream: "io.BufferedReader[Any]") -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)
    for data in chain(pieces_of(stream), (b"",)):
        try:
            made = decoder.decode(data, final=not data)
        except UnicodeError as error:  # where it is not about a character: there is no byte order mark
            raise OSError(f"{error}: name the encoding that needs none, for example utf-16-le") from error
        if made:
            yield made.encode("utf-8", "surrogatepass")
