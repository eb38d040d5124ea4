"""Text in other encodings, as UTF-8 while it is read: a character that is none harms its own line alone."""

import codecs
import io
from typing import Any, Final

from tokenmill.errors import InputError

from .compressed import BUFFER_BYTES, ForwardStream

UTF_8: Final = "utf-8"
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, none of which UTF-8 begins with. In front of UTF-8's own, readers of text look by themselves."""
_NONE: Final = "\udc80"
"""Stands for what is no character: UTF-8 has no such one, so whoever decodes its line notices."""
_HANDLER: Final = "tokenmill.produce.no-character"


def _no_character(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeDecodeError):
        return _NONE, error.end
    raise error


codecs.register_error(_HANDLER, _no_character)


def known_encoding(name: str) -> str:
    """Return what Python calls an encoding.

    Raises:
        InputError: it knows none of that name that text can be in.

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
    """Return the text in UTF-8; what is no character is no UTF-8 there either. UTF-8 stays as it is."""
    return stream if encoding == UTF_8 else io.BufferedReader(_Recoded(stream, encoding), BUFFER_BYTES)


def why_not(encoding: str, data: bytes, error: UnicodeDecodeError) -> str:
    """Return what is wrong with recoded data that is no UTF-8, of which ``error`` tells."""
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
