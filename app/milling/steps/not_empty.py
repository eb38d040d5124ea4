"""The filter ``not_empty``, which is always there: a document without text has nothing to train on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tokenmill.documents import Document

from ..document_columns import DocumentColumns
from .protocol import Rejected

EMPTY: Final = "empty"
"""Filter reason: no text, or nothing but white space."""


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Filters out text that is empty or nothing but white space (`str.isspace`)."""

    @property
    def name(self) -> str:
        """``not_empty``."""
        return "not_empty"

    def describe(self) -> dict[str, Any]:
        """Return the name; there is no parameter."""
        return {"name": self.name}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `EMPTY`."""
        if not document.text or document.text.isspace():
            return Rejected(EMPTY)
        return document

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Rejected]]:
        """Return those that are filtered out."""
        return [(index, Rejected(EMPTY)) for index, text in enumerate(documents.texts) if not text or text.isspace()]
