"""Text in other encodings, turned into UTF-8; and which encoding a text seems to have that is no UTF-8."""

import codecs
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, Final

from tokenmill.errors import InputError

from ..milling.decoding.protocol import INVALID_UTF8
from .compressed import BUFFER_BYTES, Made, pieces_of

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
_NONE: Final = "\udc80"
"""Instead of an invalid character: it is no UTF-8, so decoding its line fails."""
_HANDLER: Final = "tokenmill.produce.no-character"
_JUDGED: Final = 64 << 10
"""Bytes of a text that are looked at to see which encoding it has."""
_SHOWN: Final = 30
"""Characters that are shown, so that a person sees whether it has."""
_NO_TEXT: Final = re.compile(r"[\0-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
_CONTROL: Final = re.compile(r"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_LOOKED_AT: Final = 1024
"""Bytes of a file or page that are looked at to see whether it is binary: of random bytes, one in ten is a control
character."""
_ISO_2022: Final = re.compile(rb"\x1b\$(?:(\)C)|[@B(])")
"""Escapes of encodings that are ASCII, byte by byte, and so UTF-8."""
_ZEROS: Final = 3
"""In UTF-16, half of the bytes are zero, or in texts of several scripts, one of so many; all in even places, or odd."""
_FEW: Final = 20
"""One of so many characters may be no text."""


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
    """Return which of these encodings a text has, if it has their escapes."""
    found = _ISO_2022.search(data) if b"\x1b$" in data else None
    return "" if found is None else "iso2022_kr" if found[1] else "iso2022_jp_2"


def is_binary(data: bytes, encoding: str = UTF_8) -> bool:
    """Return whether a file or page begins as compressed and other binary data does."""
    try:
        begin = data[:_LOOKED_AT].decode(encoding, "replace")
    except (ValueError, LookupError):  # codecs that know no "replace"
        return False
    return len(_CONTROL.findall(begin)) * _FEW > len(begin)


def seems(data: bytes) -> str:
    """Return, as advice, which encoding a text seems to have that is no UTF-8, and how it reads in that."""
    data = data[:_JUDGED]
    if _NONE.encode("utf-8", "surrogatepass") in data:
        return "; it has a character that is none in the encoding that --encoding or a byte order mark says"
    name = _with_zeros(data) if b"\0" in data else _iso_2022(data) or _without_zeros(data)
    if not name:
        return ""
    text = data.decode(name, "replace")
    if not text or len(_NO_TEXT.findall(text)) * _FEW > len(text):
        return ""
    return f"; it seems to be {name}, {text[:_SHOWN].strip()!a}: if so, --encoding {name}"


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
