"""What a value looks like that mode ``auto`` must not take for plain text."""

import re
from struct import unpack_from
from typing import Final

import orjson

from tokenmill.errors import RecordError

from .reasons import CONTROL_CHARACTERS, NOT_AN_OBJECT, SCHEMA_REGISTRY_FRAMING
from .refusals import half_pair, repaired

MAGIC: Final = 0
"""The first byte that serializers for schema registries write; the schema's id follows, four bytes, big-endian."""
FRAME_BYTES: Final = 5
WHITE: Final = frozenset(b"\t\n\f\r")
"""Control characters that a text has."""
CONTROL: Final = bytes(byte for byte in range(32) if byte not in WHITE)
ENOUGH: Final = 4
"""A value is no text where one byte in this many, or more, is a control character: terminal colours take one in eight
or so."""
JUDGED: Final = 256
"""Bytes at a value's beginning that are counted: binary data shows there, and long texts cost no more than short
ones."""

_LIKE_JSON: Final = re.compile(
    rb"(?:[\t-\r ]|\xef\xbb\xbf)*+"  # any white space of ASCII, any byte order marks
    rb"(?:\{"
    rb"|\[[\t-\r \[]*+(?:[{\"\]]|\Z"  # further arrays; then an object, a string, the end of the array or of the value
    rb"|(?:-?[0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?+[0-9]*+)?+|true|false|null)[\t-\r ]*+(?:[,\]]|\Z)"
    rb"|(?:-|t|tr|tru|f|fa|fal|fals|n|nu|nul)\Z))"  # cut off within the first of its values
)


_SCALAR: Final = re.compile(
    rb"(?:[\t\n\r ]|\xef\xbb\xbf)*+(?P<scalar>(?:[\"0-9-]|true|false|null|NaN|Infinity).*+)\Z", re.DOTALL
)
_NOT_FINITE: Final = frozenset((b"NaN", b"Infinity", b"-Infinity"))
_OBJECT_IN_STRING: Final = re.compile(rb'"[\t\n\r ]*+(?:\[[\t\n\r ]*+)*+\{[\t\n\r ]*+(?:\\"|\})')
"""An object that was encoded twice, however much of it is there."""


def like_json(value: bytes) -> bool:
    """Return whether a value begins like a JSON object or array, whatever follows.

    An object begins with a brace. An array begins with a bracket and then what a JSON value begins with, so a
    Markdown link (``[link](x)``), a TOML table or ``[INFO]`` is none; ``[1, `` and ``[]`` are.
    """
    return _LIKE_JSON.match(value) is not None


def check_no_scalar(value: bytes, text_by: str = 'decode = "text", which takes it as it is') -> None:
    """Raise `RecordError` for a JSON string, number or word, whole; or an object in a string, however much is there.

    ``text_by`` says what takes it as a text. The reason is `NOT_AN_OBJECT`; for a string with half a surrogate pair,
    `INVALID_UNICODE`.
    """
    found = _SCALAR.match(value)
    if found is None:
        return
    scalar = found["scalar"].rstrip(b"\t\n\r ")
    twice = _OBJECT_IN_STRING.match(scalar) is not None
    try:
        if scalar not in _NOT_FINITE and not twice:
            orjson.loads(scalar)
    except orjson.JSONDecodeError:
        if repaired(scalar) is not None:
            raise half_pair() from None
        return
    what = "an object in a JSON string: let the producer encode it once" if twice else "a JSON value, but no object"
    raise RecordError(NOT_AN_OBJECT, f"{what}; text that looks so needs {text_by}")


def check_plain(value: bytes) -> None:
    """Raise `RecordError` for a value that mode ``auto`` does not take as the text that it is."""
    if like_json(value):
        raise RecordError(NOT_AN_OBJECT, 'it begins like JSON; plain text that begins so needs decode = "text"')
    if value.startswith(b"\0"):
        raise registry_framing(value)
    check_no_scalar(value)
    check_characters(value)


def registry_framing(value: bytes) -> RecordError:
    """Return the error for a value that begins with `MAGIC`."""
    if len(value) < FRAME_BYTES:
        return RecordError(CONTROL_CHARACTERS, f"{_NULS}; {_NO_TEXT}")
    (schema,) = unpack_from(">I", value, 1)
    return RecordError(
        SCHEMA_REGISTRY_FRAMING,
        f"it begins like a value of a schema registry (magic byte 0, schema {schema}): "
        'set decode to "avro", "protobuf" or "json_schema", whichever it is',
    )


def check_characters(value: bytes) -> None:
    """Raise `RecordError` (`CONTROL_CHARACTERS`) for a value with a NUL, or one that begins as binary data does."""
    if 0 in value:
        raise RecordError(CONTROL_CHARACTERS, f"{_NULS}; {_NO_TEXT}")
    begin = value[:JUDGED]
    count = len(begin) - len(begin.translate(None, CONTROL))
    if ENOUGH * count >= len(begin) > 0:
        raise RecordError(
            CONTROL_CHARACTERS,
            f"{count} of its first {len(begin)} bytes are control characters, as in binary data; {_NO_TEXT}",
        )


_NULS: Final = "it holds NULs, as binary data and UTF-16 do"
_NO_TEXT: Final = (
    'let the producer send UTF-8, name what it is with decode ("avro", "protobuf", "json_schema", or a function of '
    'your own), or set decode = "text" to take it as it is'
)
