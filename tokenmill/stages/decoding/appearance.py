"""What a value looks like that mode ``auto`` must not take for plain text."""

import re
from struct import unpack_from
from typing import Final

from tokenmill.errors import RecordError
from tokenmill.stages.decoding.reasons import (
    CONTROL_CHARACTERS,
    ENCODED_DATA,
    NOT_AN_OBJECT,
    SCHEMA_REGISTRY_FRAMING,
)

MAGIC: Final = b"\0"
"""The first byte that serializers for schema registries write; the schema's id follows, four bytes, big-endian."""
FRAME_BYTES: Final = 5
ESCAPE: Final = 0x1B
"""The character that begins a colour of a terminal."""
WHITE: Final = frozenset(b"\t\n\f\r")
"""Control characters that a text has."""
CONTROL: Final = bytes(byte for byte in range(32) if byte not in WHITE)
ENOUGH: Final = 4
"""A value is no text where one byte in this many, or more, is a control character: terminal colours take one in eight
or so."""
JUDGED: Final = 256
"""Bytes at a value's beginning that are counted: binary data shows there, and long texts cost no more than short
ones."""

_ARRAY_OR_OBJECT: Final = (
    rb"(?:\{"
    rb"|\[[\t-\r \[]*+(?:[{\"\]]|\Z"  # further arrays; then an object, a string, the end of the array or of the value
    rb"|(?:-?[0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?+[0-9]*+)?+|true|false|null)[\t-\r ]*+(?:[,\]]|\Z)"
    rb"|(?:-|t|tr|tru|f|fa|fal|fals|n|nu|nul)\Z))"  # cut off within the first of its values
)
_LIKE_JSON_2: Final = re.compile(rb"(?:[\t-\r ]|\xef\xbb\xbf)*+" + _ARRAY_OR_OBJECT)
"""By rules 2: after white space of ASCII and byte order marks."""
_UNSEEN: Final = (
    rb"(?:[\x01-\x1a\x1c-\x20\x7f]|\xc2[\x80-\xa0\xad]|\xe1\x9a\x80|\xe2\x80[\x80-\x8f\xa8-\xaf]|\xe2\x81[\x9f-\xaf]"
    rb"|\xe3\x80\x80|\xef\xbb\xbf|\xef\xbf\xbd)*+"
)
"""Control characters (no zero, no escape), white space, signs without a form, and what stands for broken bytes."""
_LIKE_JSON: Final = re.compile(_UNSEEN + _ARRAY_OR_OBJECT)
_STRING: Final = rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"'
_JSON_ALONE: Final = re.compile(
    _UNSEEN
    + rb"(?:(?P<string>(?:%b%b)++)" % (_STRING, _UNSEEN)
    + rb"|(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|NaN|-?Infinity)"
    rb"|(?P<word>true|false|null))%b\Z" % _UNSEEN
)
"""A JSON value that is neither an object nor an array: a string or several, a number, a word."""
_JSON_IN_QUOTES: Final = re.compile(_UNSEEN + rb"[bBuU]?[\"'\\]++\s*+(?:\[\s*+)*+\{\s*+(?:\\*+[\"'][^\s\"',.;:!?)]|\})")
"""An object, or an array of objects, behind quotes: encoded twice and cut off, or printed as a program shows bytes."""
_ENCODED: Final = re.compile(
    rb"(?:(?P<base64>"
    rb"(?:data:[^,\s]*+;base64,)?+(?=[A-Za-z+/_-]*+[0-9])(?=[A-Z0-9+/_-]*+[a-z])(?=[a-z0-9+/_-]*+[A-Z])"
    rb"[A-Za-z0-9+/_-]{60,}+(?:\r?\n[A-Za-z0-9+/_-]++|\.[A-Za-z0-9_-]{20,}+)*+={0,2}+"
    rb"|(?:[A-Za-z0-9+/]{4}){2,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)"
    rb"|(?:eyJ|eyAi|ewog|ew0K|W3si|H4sI|UEsDB|iVBOR|JVBER)[A-Za-z0-9+/_.-]{8,}+={0,2}+)"
    rb"|(?P<hexadecimal>(?:(?:0x)?+(?=[0-9]*+[a-fA-F])(?=[a-fA-F]*+[0-9])(?:[0-9a-fA-F]{2}){24,}+"
    rb"|\\x(?:[0-9a-fA-F]{2})++))"
    rb"|(?P<form>%(?:7[bB]|5[bB]|22)\S*+"  # an encoded brace, bracket or quotation mark
    rb"|(?=\S*(?:%[0-9a-fA-F]{2}|&))[\w.\[\]%+-]++=[^\s&]*+(?:&[\w.\[\]%+-]++=[^\s&]*+)*+))\s*+\Z",
    re.DOTALL,
)
"""Values that are in one of these encodings from beginning to end, without a space."""
_FILES: Final = {b"Obj\x01": "Avro file", b"PAR1": "Parquet file", b"%PDF-": "PDF", b":)\n": "Smile"}
"""What files and formats begin with whose other bytes may be those of a text."""
_FIELD, _SIZED = 0x0A, 2
"""The first byte of a Protobuf message with a text in its first field, a line feed; and the kind of such fields."""
_CBOR_TEXT: Final = 0x78


def like_json(value: bytes, *, unseen: bool = True) -> bool:
    """Return whether a value begins like a JSON object or array, whatever follows.

    An object begins with a brace. An array begins with a bracket and then what a JSON value begins with, so a
    Markdown link (``[link](x)``), a TOML table or ``[INFO]`` is none; ``[1, `` and ``[]`` are. All that nobody sees may
    stand before it; by rules 2 (not ``unseen``) only white space of ASCII.
    """
    return (_LIKE_JSON if unseen else _LIKE_JSON_2).match(value) is not None


def check_no_json(value: bytes) -> None:
    """Raise `RecordError` (`NOT_AN_OBJECT`) for JSON that is no object or array, and for JSON in quotes."""
    found = _JSON_ALONE.match(value)
    if found is not None:
        what = f"a JSON {found.lastgroup} by itself"
        if found["string"] and _JSON_IN_QUOTES.match(value):
            what = "a JSON string that holds an object: it was encoded twice, so let the producer encode it once"
    elif _JSON_IN_QUOTES.match(value):
        what = "JSON in quotes"
    else:
        return
    raise RecordError(
        NOT_AN_OBJECT, f'the value is {what}; send an object with a text, or set decode = "text" to take it as it is'
    )


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


def check_encoding(value: bytes) -> None:
    """Raise `RecordError` for data whose bytes could be a text: encoded as one, or in a format with few other bytes."""
    first = value[0] if value else ESCAPE
    if first in CONTROL and first != ESCAPE:
        raise RecordError(CONTROL_CHARACTERS, f"it begins with a control character, as binary data does; {_NO_TEXT}")
    encoded = _ENCODED.match(value)
    kind = encoded.lastgroup if encoded is not None else None
    for head, file in _FILES.items():
        kind = file if value.startswith(head) else kind
    if value[-1:] == b"." and (b"\np0\n" in value or value[2:5] == b"p0\n"):
        kind = "pickle"
    elif first == _FIELD and _is_protobuf(value):
        kind = "Protobuf"
    elif first == _CBOR_TEXT and value[1:2] == bytes([len(value) - 2 & 0xFF]):
        kind = "CBOR"
    if kind is not None:
        raise RecordError(ENCODED_DATA, f"it looks like {kind}, not like a text; {_NO_TEXT}")


def _is_protobuf(value: bytes) -> bool:
    """Return whether a value is a field, or several of which one begins with a control character."""
    at, odd, count = 0, False, 0
    while at < len(value) - 1:
        tag, size = value[at], value[at + 1]
        odd |= tag in CONTROL or (tag & 7 == _SIZED and size in CONTROL)
        at += 1 + {0: 1, 1: 8, 2: 1 + size, 5: 4}.get(tag & 7, len(value))
        count += 1
    return at == len(value) and (odd or count == 1)


_NULS: Final = "it holds NULs, as binary data and UTF-16 do"
_NO_TEXT: Final = (
    'let the producer send UTF-8, name what it is with decode ("avro", "protobuf", "json_schema", or a function of '
    'your own), or set decode = "text" to take it as it is'
)
