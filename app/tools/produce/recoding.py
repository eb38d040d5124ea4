"""Text in other encodings, turned into UTF-8 while it is read; an invalid character harms its own line alone."""

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
