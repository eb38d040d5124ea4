"""Modes ``json``, where each is an object with a text, ``text``, and ``auto``, which distinguishes them by their bytes.

The reasons why a value is no document come from the bytes, not from the parser's message: they are counted in the
totals, and must not change with its version. Keys are untrusted: in a message, they are escaped and cut.

A field is named alike in the settings of a topic and for `tokenmill produce` (`find_field`). Its whole name goes first:
``meta.lang`` is the key of that name where the object has it, whatever its value, and else ``lang`` in the object
``meta``. A part of a path that holds a dot itself stands in double quotes: ``attributes."log.message"``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Any, Final

import numpy as np
import orjson

from tokenmill.documents import INTEGERS, NO_FIELDS, OVER_A_LIMIT, TOO_LARGE, Document, Limits, Scalar
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns
from . import protocol
from .protocol import (
    BOM,
    CONTROL_CHARACTERS,
    NOT_AN_OBJECT,
    RULES,
    SCHEMA_REGISTRY_FRAMING,
    WRONG_TYPE,
    Decoded,
    Decoder,
    DecodingRules,
    decode_utf8,
    one_by_one,
)

_PART: Final = re.compile(r'"([^"]+)"(?=\.|$)|([^.]+)')


@lru_cache(maxsize=256)
def path_parts(path: str) -> tuple[str, ...]:
    """Return the names of which a path is made, in order."""
    return tuple(quoted or plain for quoted, plain in _PART.findall(path)) if '"' in path else tuple(path.split("."))


def find_field(row: Mapping[str, Any], path: str, absent: Any = None) -> Any:
    """Return the field that ``path`` names from object to object, not into arrays; ``absent`` where there is none."""
    if path in row:
        return row[path]
    if "." not in path:
        return absent
    found: Any = row
    for part in path_parts(path):
        if not isinstance(found, Mapping) or part not in found:
            return absent
        found = found[part]
    return found


def quoted_path(row: Mapping[str, Any], path: str) -> str | None:
    """Return the path to a field whose own name is an end of ``path``, with its dots; None where there is none."""
    at, found = "", row
    while "." in path:
        if at and path in found:
            return f'{at}"{path}"'
        part, _, path = path.partition(".")
        if not isinstance(inner := found.get(part), Mapping):
            return None
        at, found = f"{at}{part}.", inner
    return None


_STRING_OR_LONG: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?<![0-9.eE+-])(?P<whole>-?[0-9]{19,}+)(?![0-9.eE])', re.DOTALL
)
"""A string, or an integer of so many digits that it may be beyond 64 bits."""
_FIRST_WIDE: Final = 2.0**63  # smaller floats are no integers beyond 64 bits
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """Which fields of a JSON object are the document's text, id and carried fields; all others are ignored.

    A field is a key of the object, or else a dotted path (`find_field`). Where a key occurs twice, the last
    one counts. An id that is neither an integer nor a string with a character counts as no id. A carried field that is
    an array or an object is refused, because somebody asked for it by name. So are integers beyond 64 bits, as id or
    carried: the parser would round them; and bytes and numbers that are not finite, which formats other than JSON have.
    """

    text_fields: tuple[str, ...]
    """The text is the first of these that holds a string."""
    id_field: str
    metadata_fields: tuple[str, ...]
    limits: Limits

    def document(self, value: Mapping[str, Any], source: bytes | None) -> Document:
        """Return the document that an object is.

        ``source`` is the JSON of which ``value`` was parsed; None where it was no JSON, and its integers are exact.
        Raises RecordError where no text field holds a string, a part is over its limit, a carried field is none, or an
        integer is beyond 64 bits.
        """
        for field in self.text_fields:
            text = find_field(value, field)
            if isinstance(text, str):
                break
        else:
            raise _no_text(self.text_fields, value)
        self.limits.check_text(text)
        name = find_field(value, self.id_field)
        # a bool is an int for Python
        if (type(name) is str and name) or type(name) is int:
            self.limits.check_id(name)
        else:
            if type(name) is float:
                check_integer(f"the id ({self.id_field!r})", self.id_field, name, source)
            name = None
        return Document(text, name, self._carried(value, source) if self.metadata_fields else NO_FIELDS)

    def _carried(self, value: Mapping[str, Any], source: bytes | None) -> Mapping[str, Scalar]:
        found = {name: find_field(value, name, _ABSENT) for name in self.metadata_fields}
        fields = {name: field for name, field in found.items() if field is not _ABSENT}
        for name, scalar in fields.items():
            if isinstance(scalar, (dict, list)):
                raise RecordError(WRONG_TYPE, f"the carried field {name!r} is an array or an object, not one value")
            if isinstance(scalar, bytes) or (isinstance(scalar, float) and not isfinite(scalar)):
                raise RecordError(WRONG_TYPE, f"the carried field {name!r} is bytes, or no finite number")
            if type(scalar) is float:
                check_integer(f"the carried field {name!r}", name, scalar, source)
        self.limits.check_fields(fields)
        return fields


def check_integer(what: str, path: str, value: float, source: bytes | None) -> None:
    """Raise `RecordError` (`INTEGER_OUT_OF_RANGE`) if the float was an integer beyond 64 bits.

    ``value`` was parsed of the JSON object ``source`` (None: of no JSON) and found in it by ``path``. The parser reads
    an integer that is too wide as the nearest float: only its digits show what it was.
    """
    if source is None or abs(value) < _FIRST_WIDE:
        return
    with_strings = _STRING_OR_LONG.sub(
        lambda found: found[0] if found["whole"] is None or int(found["whole"]) in INTEGERS else b'""', source
    )
    if isinstance(find_field(orjson.loads(with_strings), path), str):
        why = f"{what} is an integer beyond 64 bits, which JSON parsers round: send it as a string"
        raise RecordError(protocol.INTEGER_OUT_OF_RANGE, why)


@dataclass(frozen=True, slots=True)
class JsonDecoder(Decoder):
    """Takes a JSON object one of whose text fields is a string; anything else is refused, with the reason."""

    fields: ObjectFields
    rules: DecodingRules = RULES

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the number of the rules."""
        return ({"name": "decode", "rules": self.rules.number},)

    def __call__(self, value: bytes) -> Document:
        """Return the document; see `milling.decoding.protocol` for what is refused."""
        value = value.removeprefix(BOM)
        parsed = parsed_json(value, self.rules)
        if not isinstance(parsed, dict):
            kind = _JSON_TYPES[type(parsed)]
            each = "; send each of its objects as a record of its own" if kind == "array" else ""
            raise RecordError(NOT_AN_OBJECT, f"the value is a JSON {kind}, not an object{each}")
        return self.fields.document(parsed, value)


def _no_text(text_fields: Sequence[str], value: Mapping[str, Any]) -> RecordError:
    for name in text_fields:
        found = find_field(value, name, _ABSENT)
        if found is not _ABSENT:
            return RecordError(WRONG_TYPE, f"{name!r} is a JSON {_JSON_TYPES[type(found)]}, not a string (text_fields)")
    return without_text(value, text_fields)


_JSON_TYPES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
    bytes: "string of bytes",  # of Avro and Protobuf alone
}


_OPERATIONS: Final = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate"}
"""What Debezium writes in ``op`` of an event that changes a table."""
_SHOWN_CHARACTERS: Final = 200


def without_text(value: Mapping[str, Any], text_fields: Sequence[str]) -> RecordError:
    """Return the error for an object that has none of ``text_fields``."""
    for prefix, envelope in (("payload.", value.get("payload")), ("", value)):
        if not isinstance(envelope, dict):
            continue
        operation = envelope.get("op")
        if isinstance(operation, str) and operation in _OPERATIONS and ("after" in envelope or "before" in envelope):
            return RecordError(protocol.DEBEZIUM_ENVELOPE, _of_change(prefix, envelope))
    keys = ", ".join(ascii(key[:_SHOWN_CHARACTERS]) for key in list(value)[:8])[:_SHOWN_CHARACTERS]
    wanted = " or ".join(map(repr, text_fields))
    detail = f"no field {wanted} (text_fields); the object has: {keys or 'no fields'}"
    nested = next(_nested(value, {name.rpartition(".")[2] for name in text_fields}), None)
    return RecordError(protocol.MISSING_TEXT, f"{detail}; {_advice(nested)}" if nested else detail)


def _of_change(prefix: str, envelope: Mapping[str, Any]) -> str:
    operation = envelope["op"]
    said = f'a change event of Debezium (op "{operation}", {_OPERATIONS[operation]})'
    row = envelope.get("after")
    if not isinstance(row, dict):
        return f"{said} without a row after the change: it has no text"
    texts = {name: field for name, field in row.items() if isinstance(field, str) and "." not in name}
    longest = max(texts, key=lambda name: len(texts[name]), default=None)
    path = None if longest is None else _shown(f"{prefix}after.{longest}")
    return f"{said}; {_advice(path)}" if path else f"{said}; name its text with text_fields, as {prefix}after.body"


def _nested(value: Mapping[str, Any], names: set[str]) -> Iterator[str]:
    level: list[tuple[str, Mapping[str, Any]]] = [("", value)]
    for _ in range(4):  # objects deep
        level = [
            (f"{at}{key}.", found)
            for at, row in level
            for key, found in row.items()
            if isinstance(found, dict) and len(at) + len(key) < _SHOWN_CHARACTERS  # longer ones are not shown
        ]
        for at, row in level:
            for name in sorted(names):
                if isinstance(row.get(name), str) and (path := _shown(at + name)):
                    yield path


def _shown(path: str) -> str | None:
    return path if len(path) <= _SHOWN_CHARACTERS and path.isascii() and path.isprintable() else None


def _advice(path: str | None) -> str:
    return f'text_fields = "{path}" reads the text that it has there'


_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string, the last one perhaps unfinished; possessive, so that it takes linear time and no memory."""
_TO_HALF: Final = re.compile(
    rb"((?:[^\\]++"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|\\(?!u[dD][89a-fA-F][0-9a-fA-F]{2}).)*+)"  # any other escape: `\\ud800` is a backslash and five letters
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})?+",
    re.DOTALL,
)
"""Everything up to a half pair, and that; or up to the end."""
_MAYBE_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""A value without a match has no half pair, so its escapes need not be examined one by one."""
_NO_VALUE: Final = re.compile(rb"-?(?:nan|inf(?:inity)?|none|undefined)\b", re.IGNORECASE)
"""What programs write for a number that is none, or for nothing."""
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def parsed_json(value: bytes, rules: DecodingRules) -> Any:
    """Return what JSON (no byte order mark) stands for.

    Raises RecordError where it is none, or holds too many values; and MemoryError, which says nothing about it.
    """
    if most_values(value, rules.most_values) > rules.most_values:
        raise rules.too_many_values()
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        if str(error).startswith("Not enough memory"):  # "failed to allocate memory" is said of bad values
            raise MemoryError(str(error)) from None
        raise refusal(value) from None


def most_values(value: bytes, enough: int) -> int:
    """Return how many values JSON may hold, by what stands before each but the first; of many, none in strings."""
    if len(value) <= enough:
        return len(value)
    found = sum(map(value.count, (b",", b"[", b"{")))
    return found if found <= enough else sum(map(_STRING.sub(b"", value).count, (b",", b"[", b"{")))


def refusal(value: bytes) -> RecordError:
    """Return the error for a ``value`` (no byte order mark) that the parser refused."""
    try:
        decode_utf8(value)
    except RecordError as error:
        return error
    depth = value.count(b"[") + value.count(b"{")
    if depth > protocol.MAX_DEPTH and (depth := nesting(value)) > protocol.MAX_DEPTH:
        return RecordError(protocol.TOO_DEEP, f"nested {depth} deep, over {protocol.MAX_DEPTH}")
    if repaired(value) is not None:
        return half_pair()
    return RecordError(protocol.MALFORMED_JSON, _where_it_ends(value))


def _where_it_ends(value: bytes) -> str:
    """Return up to which byte text may be JSON, and why not further: in the parser's words, which nothing counts."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as error:
        at = len(value.decode()[: error.pos].encode())
        word = _NO_VALUE.match(value, max(0, at - (value[at - 1 : at] == b"-")))
        if word is not None:
            place = f"{word[0].decode()} at byte {word.start()}"
            return f"{place} is no JSON value: let the producer write null, or a string"
        return f"no JSON from byte {at} on: {error.msg}"
    return "no JSON"


def half_pair() -> RecordError:
    """Return the error for a value that only half a surrogate pair keeps from being JSON."""
    why = "an escape is half a surrogate pair; let the producer replace it by U+FFFD"
    return RecordError(protocol.INVALID_UNICODE, why)


def repaired(value: bytes) -> object | None:
    """Return what ``value`` would be with U+FFFD for each half surrogate pair; None if that is not its only fault."""
    if not _MAYBE_HALF.search(value):
        return None
    with_replacements = _TO_HALF.sub(lambda found: found[1] + rb"\ufffd" if found[2] else found[0], value)
    if with_replacements == value:
        return None
    try:
        parsed: object = orjson.loads(with_replacements)
    except orjson.JSONDecodeError:
        return None
    return parsed


def nesting(value: bytes) -> int:
    """Return how deep brackets are nested outside strings, in anything that looks a little like JSON."""
    brackets = np.frombuffer(_STRING.sub(b"", value).translate(None, _NO_BRACKETS), dtype=np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    closing = (brackets == ord("]")) | (brackets == ord("}"))
    depths = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
    return int(depths.max(initial=0))


FRAME: Final = Struct(">bi")
"""What serializers for schema registries write first: a zero byte, and the schema's id, which is Java's int."""
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
_SPACE: Final = rb"[\t\n\r ]|\\[tnr]|\\u00(?:20|0[9aAdD])"
_OBJECT_IN_STRING: Final = re.compile(rb'"(?:\[|%s)*+\{(?:%s)*+(?:\\"|\\u0022|\})' % (_SPACE, _SPACE))
"""An object that was encoded twice, however much of it is there."""
_UNINDENTED: Final = re.compile(rb'"[\t\n\r \[]*+\{[\t\n\r ]*+(?:\\"|\})')
"""What earlier rules find of these."""


def like_json(value: bytes) -> bool:
    """Return whether a value begins like a JSON object or array, whatever follows.

    An array begins with a bracket and then what a JSON value begins with, so a Markdown link (``[link](x)``), a TOML
    table or ``[INFO]`` is none; ``[1, `` and ``[]`` are.
    """
    return _LIKE_JSON.match(value) is not None


def check_no_scalar(
    value: bytes, text_by: str = 'decode = "text", which takes it as it is', *, lenient: bool = False
) -> None:
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
    twice = (_UNINDENTED if lenient else _OBJECT_IN_STRING).match(scalar) is not None
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
    if len(value) < FRAME.size:
        return RecordError(CONTROL_CHARACTERS, f"{_NULS}; {_NO_TEXT}")
    return RecordError(
        SCHEMA_REGISTRY_FRAMING,
        f"it begins like a value of a schema registry (magic byte 0, schema {int.from_bytes(value[1 : FRAME.size])}): "
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
        if first == 0:
            raise _registry_framing(value)
        if not self.objects.rules.scalars_are_text:
            check_no_scalar(value, lenient=self.objects.rules.lenient)
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
