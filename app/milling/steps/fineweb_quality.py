"""The filter ``fineweb_quality``: documents that are lists, have short lines, or repeat lines.

Rules of FineWeb (Penedo et al. 2024, https://arxiv.org/abs/2406.17557, section 3.6) as datatrove 0.10.1 has them in
``FineWebQualityFilter``: the same parameters, defaults, reasons and order.
"""

from dataclasses import dataclass
from typing import ClassVar

from tokenmill.documents import Document

from ..curation.words import TERMINAL, english
from .gopher_quality import share
from .gopher_repetition import repetitions
from .protocol import EnglishFilter, Rejected


@dataclass(frozen=True, slots=True)
class FinewebQuality(EnglishFilter):
    """Filters by lines: how they end, how long they are, how many repeat, how many there are for the words.

    A line feed ends a line. Lines of white space alone do not count, except in ``new_line_ratio``.
    """

    name: ClassVar[str] = "fineweb_quality"

    line_punct_thr: float = 0.12
    """Smallest share of lines that end with one of ``stop_chars``; white space behind it hides it."""
    line_punct_exclude_zero: bool = False
    """Whether a text without any such line is kept: its language may have other punctuation."""
    stop_chars: tuple[str, ...] | None = None
    """What ends a sentence; null stands for the terminal punctuation of all scripts."""
    short_line_thr: float = 0.67
    """Largest share of short lines."""
    short_line_length: int = 30
    """A line of at most so many characters is short."""
    char_duplicates_ratio: float = 0.01
    """Largest share of characters, line feeds left aside, in lines that occurred before."""
    new_line_ratio: float = 0.3
    """Most line feeds for each word."""

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document; or the reason of the first rule that it breaks.

        ``empty``, ``line_punct_ratio``, ``short_line_ratio``, ``char_dup_ratio``, ``list_ratio``.
        """
        text = document.text
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if not lines:
            return Rejected("empty", "no line has text")
        stops = tuple(TERMINAL) if self.stop_chars is None else self.stop_chars
        ratio = sum(line.endswith(stops) for line in lines) / len(lines)
        if ratio < self.line_punct_thr and not (ratio == 0 and self.line_punct_exclude_zero):
            detail = f"{ratio:.4g} of lines end with punctuation, under {self.line_punct_thr}"
            return Rejected("line_punct_ratio", detail)
        ratio = sum(len(line) <= self.short_line_length for line in lines) / len(lines)
        if ratio > self.short_line_thr:
            return Rejected("short_line_ratio", f"{ratio:.4g} of lines are short, over {self.short_line_thr}")
        ratio = repetitions(lines)[1] / (len(text) - text.count("\n"))
        if ratio > self.char_duplicates_ratio:
            detail = f"lines that occurred before have {ratio:.4g} of characters, over {self.char_duplicates_ratio}"
            return Rejected("char_dup_ratio", detail)
        ratio = share(text.count("\n"), len(english().words(text)))  # no word: one that spaCy cannot hold stands alone
        if ratio > self.new_line_ratio:
            return Rejected("list_ratio", f"{ratio:.4g} line feeds a word, over {self.new_line_ratio}")
        return document
