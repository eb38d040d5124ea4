"""Mode ``json``: every value is a JSON object with a text; and how such an object becomes a document."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import orjson

from tokenmill.documents import INTEGERS, NO_FIELDS, Document, Limits, Scalar
from tokenmill.errors import RecordError

from ..field_paths import find_field
from .plain_text import BOM
from .protocol import INTEGER_OUT_OF_RANGE, NOT_AN_OBJECT, RULES, WRONG_TYPE, Decoder, DecodingRules
from .refusals import parsed_json, without_text

_STRING_OR_LONG: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?<![0-9.eE+-])(?P<whole>-?[0-9]{19,}+)(?![0-9.eE])', re.DOTALL
)
"""A string, or an integer of so many digits that it may be beyond 64 bits."""
_FIRST_WIDE: Final = 2.0**63
"""Smaller floats are no integers beyond 64 bits."""
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """Which fields of a JSON object are the document's text, id and carried fields; all others are ignored.

    A field is a key of the object, or else a dotted path (`milling.field_paths`). Where a key occurs twice,
    the last one counts. An id that is neither an integer nor a string with at least one character counts as no id, and
    the text is used all the same. A carried field that is an array or an object is refused, because somebody asked for
    it by name. So is an integer beyond 64 bits, as id or carried: the parser would round it. So are bytes and numbers
    that are not finite; JSON has none, but other formats whose values become objects do.
    """

    text_fields: tuple[str, ...]
    """The text is the first of these that holds a string."""
    id_field: str
    metadata_fields: tuple[str, ...]
    limits: Limits

    def text_of(self, value: Mapping[str, Any]) -> str | None:
        """Return the object's text, or None where no text field holds a string."""
        for name in self.text_fields:
            text = find_field(value, name)
            if isinstance(text, str):
                return text
        return None

    def document(self, value: Mapping[str, Any], source: bytes | None) -> Document | None:
        """Return the document that an object is, or None where no text field holds a string.

        ``source`` is the JSON of which ``value`` was parsed; None where it was no JSON, and its integers are exact.
        Raises RecordError where a part is over its limit, a carried field has parts of its own, or the id or a carried
        field is an integer beyond 64 bits.
        """
        text = self.text_of(value)
        if text is None:
            return None
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
    an integer that is too wide as the nearest float. Only the digits show that it was not written with a point or a
    power of ten.
    """
    if source is None or abs(value) < _FIRST_WIDE:
        return
    if isinstance(find_field(orjson.loads(_STRING_OR_LONG.sub(_wide_as_string, source)), path), str):
        raise RecordError(
            INTEGER_OUT_OF_RANGE, f"{what} is an integer beyond 64 bits, which JSON parsers round: send it as a string"
        )


def _wide_as_string(token: re.Match[bytes]) -> bytes:
    if token["whole"] is None or int(token["whole"]) in INTEGERS:
        return token[0]
    return b'""'


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
        document = self.fields.document(parsed, value)
        if document is None:
            raise no_text(self.fields, parsed)
        return document


def no_text(fields: ObjectFields, value: Mapping[str, Any]) -> RecordError:
    """Return the error for an object of which ``fields`` makes no document."""
    for name in fields.text_fields:
        found = find_field(value, name, _ABSENT)
        if found is not _ABSENT:
            return RecordError(WRONG_TYPE, f"{name!r} is a JSON {_JSON_TYPES[type(found)]}, not a string (text_fields)")
    return without_text(value, fields.text_fields)


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
