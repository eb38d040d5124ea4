"""The transform ``normalize``: Unicode normalisation (UAX #15).

Python puts combining marks in order one by one, which takes a square of time: 1.5 MB of them, 1.5 kB when compressed,
would hold the interpreter for minutes. So long runs of them are sorted first, which changes nothing of what comes out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from unicodedata import combining, is_normalized, normalize, unidata_version

from tokenmill.documents import Document

from ..document_columns import DocumentColumns
from .protocol import Answer

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS: Final[tuple[str, ...]] = get_args(Form)
LONG_RUN: Final = 512
"""Marks in a row that are sorted: fewer take Python some 0.1 ms."""


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
        text = self._normalized(document.text)
        return document if text is document.text else document._replace(text=text)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return those that change."""
        normalized = ((index, text, self._normalized(text)) for index, text in enumerate(documents.texts))
        return [(index, documents.at(index)._replace(text=new)) for index, text, new in normalized if new is not text]

    def _normalized(self, text: str) -> str:
        """Return the text in the form; the text itself where it has it already."""
        if text.isascii():
            return text
        ordered = with_sorted_marks(self.form, text)
        if ordered is text and is_normalized(self.form, text):
            return text
        new = normalize(self.form, ordered)
        return text if new == text else new


def with_sorted_marks(form: str, text: str) -> str:
    """Return a text with the same normal ``form``, in which long runs of combining marks are in canonical order.

    The text itself is returned where there are none. A run covers a multiple of its length: few places are looked at.
    """
    parts, done = list[str](), 0
    for at in range(LONG_RUN - 1, len(text), LONG_RUN):
        if at < done or not _is_mark(form, text[at]):
            continue
        low, high = at, at + 1
        while low > done and _is_mark(form, text[low - 1]):
            low -= 1
        while high < len(text) and _is_mark(form, text[high]):
            high += 1
        if high - low >= LONG_RUN:
            marks = "".join(_decomposed(form, character) for character in text[low:high])
            parts += [text[done:low], *sorted(marks, key=combining)]  # a stable sort, as Unicode wants it
            done = high
    return "".join([*parts, text[done:]]) if parts else text


def _is_mark(form: str, character: str) -> bool:
    """Return whether all that a character is made of takes part in canonical ordering."""
    return combining(_decomposed(form, character)[0]) != 0


def _decomposed(form: str, character: str) -> str:
    return normalize("NFKD" if form.startswith("NFK") else "NFD", character)
