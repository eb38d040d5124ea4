"""Mode ``auto``: JSON documents and plain text on one topic, told apart by the bytes alone."""

import re
from dataclasses import dataclass
from typing import Final

import orjson

from tokenmill.decoding.json_objects import ObjectFields
from tokenmill.decoding.plain_text import BOM, TextDecoder
from tokenmill.decoding.refusals import half_pair, repaired
from tokenmill.documents import Document

_OBJECT: Final = re.compile(rb"[ \t\r\n]*\{")
"""How a JSON object begins: its white space is these four. Nothing else is parsed."""


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

    def _refuse_half_pairs(self, value: bytes) -> None:
        parsed = repaired(value)
        if isinstance(parsed, dict) and self.fields.text_of(parsed) is not None:
            raise half_pair()
