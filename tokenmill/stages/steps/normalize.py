"""The transform ``normalize``: Unicode normalisation (UAX #15)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from unicodedata import is_normalized, normalize, unidata_version

from tokenmill.documents import Document
from tokenmill.stages.document_columns import DocumentColumns
from tokenmill.stages.steps.protocol import Answer

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS: Final[tuple[str, ...]] = get_args(Form)


@dataclass(frozen=True, slots=True)
class Normalize:
    """Brings the text into one normalisation form."""

    form: Form

    @property
    def name(self) -> str:
        """``normalize``."""
        return "normalize"

    def describe(self) -> dict[str, Any]:
        """Return the form, and the Unicode version that this Python knows.

        Normalisation is stable for assigned characters only: those of a later Unicode version may change with a newer
        Python, which therefore is another stream.
        """
        return {"name": self.name, "form": self.form, "unicode": unidata_version}

    def __call__(self, document: Document) -> Document:
        """Return the document with its text normalised."""
        if is_normalized(self.form, document.text):
            return document
        return document._replace(text=normalize(self.form, document.text))

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return those that change."""
        return [
            (index, documents.at(index)._replace(text=normalize(self.form, text)))
            for index, text in enumerate(documents.texts)
            if not is_normalized(self.form, text)
        ]
