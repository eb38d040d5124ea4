"""The filter ``min_chars``: short documents are left out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tokenmill.documents import Document

from ..document_columns import DocumentColumns
from .protocol import Rejected

TOO_SHORT: Final = "min_chars"
"""Filter reason: the text has fewer characters than asked for."""


@dataclass(frozen=True, slots=True)
class MinChars:
    """Filters out text of fewer than ``characters`` characters (Unicode code points, white space included)."""

    characters: int

    @property
    def name(self) -> str:
        """``min_chars``."""
        return "min_chars"

    def describe(self) -> dict[str, Any]:
        """Return the name and the number."""
        return {"name": self.name, "characters": self.characters}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `TOO_SHORT`."""
        return document if len(document.text) >= self.characters else self._rejected(document.text)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Rejected]]:
        """Return those that are filtered out."""
        return [
            (index, self._rejected(text)) for index, text in enumerate(documents.texts) if len(text) < self.characters
        ]

    def _rejected(self, text: str) -> Rejected:
        return Rejected(TOO_SHORT, f"{len(text):,} chars, fewer than {self.characters:,}")
