"""Mode ``auto``: JSON documents and plain text on one topic, distinguished by the bytes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tokenmill.documents import OVER_A_LIMIT, Document
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns
from .appearance import (
    MAGIC,
    check_characters,
    check_no_scalar,
    like_json,
    registry_framing,
)
from .json_objects import JsonDecoder
from .plain_text import TextDecoder
from .protocol import Decoded, one_by_one

_NOTHING: Final[dict[str, Any]] = {}
_ODD: Final = frozenset(b"{[\t\n\v\f\r \xef")
"""First bytes of what can begin like JSON, white space and the byte order mark included. Only values with one of these
are examined."""


@dataclass(frozen=True, slots=True)
class AutoDecoder:
    """Takes what begins like a JSON object or array as mode ``json`` does, and other UTF-8 as plain text.

    Nothing that may be somebody's data becomes text by mistake: what is JSON, or begins like it, and is no document,
    what begins like a value of a schema registry, and what is full of control characters is refused, with the setting
    that would read it (`milling.decoding.appearance`).
    """

    objects: JsonDecoder
    plain: TextDecoder

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the version of the rules."""
        return self.objects.describe()

    def __call__(self, value: bytes) -> Document:
        """Return the document; see `milling.decoding.reasons` for what is refused."""
        first = value[0] if value else None
        if first in _ODD and like_json(value):
            return self._object(value)
        if first == MAGIC:
            raise registry_framing(value)
        if not self.objects.rules.scalars_are_text:
            check_no_scalar(value)
        document = self.plain(value)
        check_characters(value)
        return document

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Decode each value.

        Most are objects with the first text field, and with an id or none, both far below their limits. These are
        decoded inline, because function calls would cost more than all other work on a small document.
        """
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

    def _object(self, value: bytes) -> Document:
        try:
            return self.objects(value)
        except RecordError as error:
            if error.reason in OVER_A_LIMIT:  # it is an object, and would be too long as text as well
                raise
            detail = f'it begins like JSON, but: {error.detail}; plain text that begins so needs decode = "text"'
            raise RecordError(error.reason, detail) from None
