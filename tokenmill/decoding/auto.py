"""Mode ``auto``: JSON documents and plain text on one topic, told apart by the bytes alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tokenmill.decoding.json_objects import ObjectFields
from tokenmill.decoding.plain_text import BOM, TextDecoder
from tokenmill.decoding.protocol import Decoded, one_by_one
from tokenmill.decoding.refusals import half_pair, repaired
from tokenmill.document_columns import DocumentColumns
from tokenmill.documents import Document
from tokenmill.errors import RecordError

_OBJECT: Final = re.compile(rb"[ \t\r\n]*\{")
"""How a JSON object begins: its white space is these four. Nothing else is parsed."""
_NOTHING: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class AutoDecoder:
    """Takes a JSON object one of whose text fields is a string as that document, any other UTF-8 as plain text.

    So source code that begins with a brace is text, and so is a JSON object without a text. One exception: an object
    that would be a document, were its text not broken by half a surrogate pair, is refused (``invalid_unicode``)
    rather than trained on with its braces and keys.
    """

    fields: ObjectFields
    plain: TextDecoder

    def __call__(self, value: bytes) -> Document:
        """Return the document; `RecordError` for what is no UTF-8, for half pairs, and for parts over their limits."""
        unmarked = value
        if value[:1] != b"{":  # most objects begin like this, and are spared the rest
            unmarked = value.removeprefix(BOM)
            if not _OBJECT.match(unmarked):
                return self.plain(value)
        try:
            parsed = orjson.loads(unmarked)
        except orjson.JSONDecodeError:
            self._refuse_half_pairs(unmarked)
            return self.plain(value)
        document = self.fields.document(parsed)
        return self.plain(value) if document is None else document

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Return what each value is.

        Most are objects with the first text field and a name or none, both far below their limits: these are taken
        apart right here, for calls cost more than all else that is done about a small document.
        """
        if self.fields.carry:
            return one_by_one(self, values)
        texts, ids, refused = list[str](), list[str | int | None](), list[tuple[int, RecordError]]()
        add_text, add_id, loads = texts.append, ids.append, orjson.loads
        text_field, id_field = self.fields.text_fields[0], self.fields.id_field
        most_text, most_id = self.fields.limits.surely_short_text, self.fields.limits.surely_short_id
        for index, value in enumerate(values):
            try:
                parsed = loads(value) if value[:1] == b"{" else _NOTHING
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

    def _refuse_half_pairs(self, value: bytes) -> None:
        parsed = repaired(value)
        if isinstance(parsed, dict) and self.fields.text_of(parsed) is not None:
            raise half_pair()
