"""The filter ``c4_paragraph``: documents with fewer than three long lines.

A rule of mC4 (Xue et al. 2021, https://arxiv.org/abs/2010.11934) as datatrove 0.10.1 has it in ``C4ParagraphFilter``,
with its fixed numbers. Its reason, "< 3 paragraphs", is ``too_few_paragraphs`` here.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from tokenmill.documents import Document

from .protocol import EachAlone, Rejected

MIN_PARAGRAPHS: Final = 3
MIN_PARAGRAPH_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class C4Paragraph(EachAlone):
    """Keeps texts with at least three lines of 200 characters or more; a line feed ends a line."""

    name: ClassVar[str] = "c4_paragraph"

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason ``too_few_paragraphs``."""
        found = sum(len(line) >= MIN_PARAGRAPH_CHARACTERS for line in document.text.split("\n"))
        if found < MIN_PARAGRAPHS:
            detail = f"{found} lines of {MIN_PARAGRAPH_CHARACTERS} characters, fewer than {MIN_PARAGRAPHS}"
            return Rejected("too_few_paragraphs", detail)
        return document
