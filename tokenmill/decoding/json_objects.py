"""Mode ``json``: every value is a JSON object with a text; and what such an object is as a document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import orjson

from tokenmill.decoding.plain_text import BOM
from tokenmill.decoding.protocol import Decoded, one_by_one
from tokenmill.decoding.reasons import MISSING_TEXT, NOT_AN_OBJECT, WRONG_TYPE
from tokenmill.decoding.refusals import refusal
from tokenmill.documents import NO_FIELDS, Document, Limits, Scalar
from tokenmill.errors import RecordError

_SHOWN_KEYS: Final = 8
_SHOWN_CHARACTERS: Final = 200
"""A dead letter's detail names a few of the keys that are there; they are untrusted, so they are escaped and cut."""


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """Which fields of a JSON object are the document's text, id and carried fields; all others are ignored.

    Where a key stands twice, the last one counts. An id that is neither an integer of 64 bits nor a string with at
    least one character is no id: the text is worth more than its name. A carried field that is an array or an object
    is refused, for somebody asked for it by name; so are bytes and numbers that JSON does not have.
    """

    text_fields: tuple[str, ...]
    """The text is the first of these that holds a string."""
    id_field: str
    carry: tuple[str, ...]
    limits: Limits

    def text_of(self, value: Mapping[str, Any]) -> str | None:
        """Return the object's text, or None where no text field holds a string."""
        for name in self.text_fields:
            text = value.get(name)
            if isinstance(text, str):
                return text
        return None

    def document(self, value: Mapping[str, Any]) -> Document | None:
        """Return the document that an object is, or None where no text field holds a string.

        Raises:
            RecordError: a part is over its limit, or a carried field has parts of its own.

        """
        text = self.text_of(value)
        if text is None:
            return None
        self.limits.check_text(text)
        name = value.get(self.id_field)
        # a bool is an int for Python; an integer beyond 64 bits comes out of the parser as a float
        if (type(name) is str and name) or type(name) is int:
            self.limits.check_id(name)
        else:
            name = None
        return Document(text, name, self._carried(value) if self.carry else NO_FIELDS)

    def _carried(self, value: Mapping[str, Any]) -> Mapping[str, Scalar]:
        fields = {name: value[name] for name in self.carry if name in value}
        for name, scalar in fields.items():
            if isinstance(scalar, (dict, list)):
                raise RecordError(WRONG_TYPE, f"the carried field {name!r} is an array or an object, not one value")
            if isinstance(scalar, bytes) or (isinstance(scalar, float) and not isfinite(scalar)):
                raise RecordError(WRONG_TYPE, f"the carried field {name!r} is bytes, or no finite number")
        self.limits.check_fields(fields)
        return fields


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Takes a JSON object one of whose text fields is a string; anything else is refused, with the reason."""

    fields: ObjectFields

    def __call__(self, value: bytes) -> Document:
        """Return the document; see `tokenmill.decoding.reasons` for what is refused."""
        value = value.removeprefix(BOM)
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise refusal(value) from None
        if not isinstance(parsed, dict):
            raise RecordError(NOT_AN_OBJECT, f"the value is a JSON {_JSON_TYPES[type(parsed)]}, not an object")
        document = self.fields.document(parsed)
        if document is None:
            raise without_text(self.fields, parsed)
        return document

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Return what each value is."""
        return one_by_one(self, values)


def without_text(fields: ObjectFields, value: Mapping[str, Any]) -> RecordError:
    """Return the error for an object of which ``fields`` makes no document."""
    for name in fields.text_fields:
        if name in value:
            return RecordError(WRONG_TYPE, f"{name!r} is a JSON {_JSON_TYPES[type(value[name])]}, not a string")
    keys = ", ".join(ascii(key[:_SHOWN_CHARACTERS]) for key in list(value)[:_SHOWN_KEYS])[:_SHOWN_CHARACTERS]
    wanted = " or ".join(map(repr, fields.text_fields))
    return RecordError(MISSING_TEXT, f"no field {wanted} (text_fields); the object has: {keys or 'no fields'}")


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
