"""Modes ``auto``, for JSON documents and plain text on one topic, distinguished by the bytes alone, and ``text``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import unpack_from
from typing import Any, Final

import orjson

from tokenmill.documents import OVER_A_LIMIT, TOO_LARGE, Document, Limits
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns
from .json_objects import JsonDecoder, half_pair, repaired
from .protocol import (
    BOM,
    CONTROL_CHARACTERS,
    NOT_AN_OBJECT,
    SCHEMA_REGISTRY_FRAMING,
    Decoded,
    Decoder,
    decode_utf8,
    one_by_one,
)

MAGIC: Final = 0
"""The first byte that serializers for schema registries write; the schema's id follows, four bytes, big-endian."""
FRAME_BYTES: Final = 5
WHITE: Final = frozenset(b"\t\n\f\r")
CONTROL: Final = bytes(byte for byte in range(32) if byte not in WHITE)
ENOUGH: Final = 4
"""Of so many bytes, one control character is too much for a text: terminal colours take one in eight or so."""
JUDGED: Final = 256
"""Bytes at a value's beginning that are counted: binary data shows there, and long texts cost no more."""

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
_NUMBER: Final = re.compile(rb"NaN|-?Infinity|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
"""A number of JSON, too large for a double or not, or what Python writes for none."""
_SEQUENCE: Final = re.compile(rb"\x1e[\t\n\r ]*+[{\[\"]")
"""How a JSON text sequence begins: <https://www.rfc-editor.org/rfc/rfc7464>."""
_OBJECT_IN_STRING: Final = re.compile(rb'"[\t\n\r ]*+(?:\[[\t\n\r ]*+)*+\{[\t\n\r ]*+(?:\\"|\})')
"""An object that was encoded twice, however much of it is there."""


def like_json(value: bytes) -> bool:
    """Return whether a value begins like a JSON object or array, whatever follows.

    An array begins with a bracket and then what a JSON value begins with, so a Markdown link (``[link](x)``), a TOML
    table or ``[INFO]`` is none; ``[1, `` and ``[]`` are.
    """
    return _LIKE_JSON.match(value) is not None


def check_no_scalar(value: bytes, text_by: str = 'decode = "text", which takes it as it is') -> None:
    """Raise `RecordError` for a JSON string, number or word, whole; or an object in a string, however much is there.

    ``text_by`` says what takes it as a text. With half a surrogate pair, the reason is `INVALID_UNICODE`.
    """
    if _SEQUENCE.match(value):
        raise RecordError(
            NOT_AN_OBJECT, f"a JSON text sequence (byte 30 first): send each of its objects; else {text_by}"
        )
    found = _SCALAR.match(value)
    if found is None:
        return
    scalar = found["scalar"].rstrip(b"\t\n\r ")
    twice = _OBJECT_IN_STRING.match(scalar) is not None
    try:
        if not twice and _NUMBER.fullmatch(scalar) is None:
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
        raise _registry_framing(value)
    check_no_scalar(value)
    check_characters(value)


def _registry_framing(value: bytes) -> RecordError:
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


_NOTHING: Final[dict[str, Any]] = {}
_ODD: Final = frozenset(b"{[\t\n\v\f\r \xef")
"""First bytes of what can begin like JSON, white space and byte order mark included; other values are not examined."""


@dataclass(frozen=True, slots=True)
class TextDecoder(Decoder):
    """Takes any UTF-8 as text, less one leading byte order mark; never parses. Its documents have no id."""

    limits: Limits

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return nothing: these rules never changed."""
        return ()

    def __call__(self, value: bytes) -> Document:
        """Return the document; `RecordError` with ``invalid_utf8`` or ``too_large``."""
        value = value.removeprefix(BOM)
        text = decode_utf8(value)
        if len(value) > self.limits.max_text_bytes:
            limit = self.limits.max_text_bytes
            raise RecordError(TOO_LARGE, f"the text has {len(value)} bytes, over {limit} (max_text_bytes)")
        return Document(text)


@dataclass(frozen=True, slots=True)
class AutoDecoder(Decoder):
    """Takes what begins like a JSON object or array as mode ``json`` does, and other UTF-8 as plain text.

    Nothing that may be somebody's data becomes text by mistake: what is JSON, or begins like it, and is no document,
    what begins like a value of a schema registry, and what is full of control characters is refused, with advice.
    """

    objects: JsonDecoder
    plain: TextDecoder

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the version of the rules."""
        return self.objects.describe()

    def __call__(self, value: bytes) -> Document:
        """Return the document; see `milling.decoding.protocol` for what is refused."""
        first = value[0] if value else None
        if first in _ODD and like_json(value):
            try:
                return self.objects(value)
            except RecordError as error:
                if error.reason in OVER_A_LIMIT:  # it is an object, and would be too long as text as well
                    raise
                detail = f'it begins like JSON, but: {error.detail}; plain text that begins so needs decode = "text"'
                raise RecordError(error.reason, detail) from None
        if first == MAGIC:
            raise _registry_framing(value)
        if not self.objects.rules.scalars_are_text:
            check_no_scalar(value)
        document = self.plain(value)
        check_characters(value)
        return document

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Decode each value; ordinary objects inline: calls would cost more than all other work on a small one."""
        fields = self.objects.fields
        if fields.metadata_fields or "." in fields.id_field:
            return one_by_one(self, values)
        texts, ids, refused = list[str](), list[str | int | None](), list[tuple[int, RecordError]]()
        add_text, add_id, loads = texts.append, ids.append, orjson.loads
        text_field, id_field = fields.text_fields[0], fields.id_field
        most_text, most_id = fields.limits.surely_short_text, fields.limits.surely_short_id
        longest = self.objects.rules.most_values  # of shorter ones the values need not be counted
        for index, value in enumerate(values):
            try:
                parsed = loads(value) if value[:1] == b"{" and len(value) <= longest else _NOTHING
            except orjson.JSONDecodeError:
                parsed = _NOTHING
            text, name = parsed.get(text_field), parsed.get(id_field)
            if type(text) is str and len(text) <= most_text:  # noqa: SIM102 - one line could not be read
                if name is None or (type(name) is str and 0 < len(name) <= most_id):
                    add_text(text)
                    add_id(name)
                    continue
            try:
                text, name, _ = self(value)
            except RecordError as error:
                refused.append((index, error))
            else:
                add_text(text)
                add_id(name)
        return Decoded(DocumentColumns.without_fields(texts, ids), refused)
