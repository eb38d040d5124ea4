"""The filter ``gopher_quality``: documents with unusual words, symbols, bullets or few English stop words.

Rules of Gopher (Rae et al. 2021, https://arxiv.org/abs/2112.11446, appendix A1) as datatrove 0.10.1 has them in
``GopherQualityFilter``: the same parameters, defaults, reasons and order. Where datatrove divides by zero (a text
without words and ``min_doc_words = 0``), shares here are 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import nan
from typing import ClassVar

from tokenmill.documents import Document

from ..curation.words import SYMBOLS, english
from .protocol import EnglishFilter, Rejected


@dataclass(frozen=True, slots=True)
class GopherQuality(EnglishFilter):
    """Filters by counts of words, symbols and lines; a bound that is 0 or null is not looked at."""

    name: ClassVar[str] = "gopher_quality"

    min_doc_words: int | None = 50
    """Fewest words, those of symbols alone left aside."""
    max_doc_words: int | None = 100_000
    """Most words, those of symbols alone left aside."""
    min_avg_word_length: float | None = 3
    """Shortest mean length of these words, in characters."""
    max_avg_word_length: float | None = 10
    """Longest mean length of these words, in characters."""
    max_symbol_word_ratio: float | None = 0.1
    """Most number signs for each word, and most ellipses (... or U+2026) for each word."""
    max_bullet_lines_ratio: float | None = 0.9
    """Largest share of lines that begin with a bullet (U+2022 or a hyphen)."""
    max_ellipsis_lines_ratio: float | None = 0.3
    """Largest share of lines that end with an ellipsis."""
    max_non_alpha_words_ratio: float | None = 0.8
    """Smallest share of words that have a letter; named as in datatrove."""
    min_stop_words: int | None = 2
    """Fewest different stop words, in this spelling."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """The stop words."""

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document; or the reason of the first rule that it breaks, each beginning with ``gopher_``."""
        text, words = document.text, english().words(document.text)
        broken = chain(self._by_length(words), self._by_marks(text, len(words)), self._by_content(words))
        return next(broken, document)

    def _by_length(self, words: tuple[str, ...]) -> Iterator[Rejected]:
        lengths = [len(word) for word in words if not SYMBOLS.issuperset(word)]
        count = len(lengths)
        if self.min_doc_words and count < self.min_doc_words:
            yield Rejected("gopher_short_doc", f"{count:,} words, fewer than {self.min_doc_words:,}")
        if self.max_doc_words and count > self.max_doc_words:
            yield Rejected("gopher_long_doc", f"{count:,} words, more than {self.max_doc_words:,}")
        mean = sum(lengths) / count if count else nan  # no bound holds for a mean of nothing
        said = f"{mean:.4g} characters a word"
        if self.min_avg_word_length and mean < self.min_avg_word_length:
            yield Rejected("gopher_below_avg_threshold", f"{said}, under {self.min_avg_word_length}")
        if self.max_avg_word_length and mean > self.max_avg_word_length:
            yield Rejected("gopher_above_avg_threshold", f"{said}, over {self.max_avg_word_length}")

    def _by_marks(self, text: str, words: int) -> Iterator[Rejected]:
        lines, symbols = text.splitlines(), self.max_symbol_word_ratio
        bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines)
        ends = sum(line.rstrip().endswith(("...", "…")) for line in lines)
        bullet_lines, ellipsis_lines = self.max_bullet_lines_ratio, self.max_ellipsis_lines_ratio
        for reason, found, whole, bound, what in (
            ("gopher_too_many_hashes", text.count("#"), words, symbols, "number signs a word"),
            ("gopher_too_many_ellipsis", text.count("...") + text.count("…"), words, symbols, "ellipses a word"),
            ("gopher_too_many_bullets", bullets, len(lines), bullet_lines, "of lines begin with a bullet"),
            ("gopher_too_many_end_ellipsis", ends, len(lines), ellipsis_lines, "of lines end with an ellipsis"),
        ):
            if bound and share(found, whole) > bound:
                yield Rejected(reason, f"{share(found, whole):.4g} {what}, over {bound}")

    def _by_content(self, words: tuple[str, ...]) -> Iterator[Rejected]:
        bound = self.max_non_alpha_words_ratio
        letters = share(sum(any(map(str.isalpha, word)) for word in words), len(words))
        if bound and letters < bound:
            yield Rejected("gopher_below_alpha_threshold", f"{letters:.4g} of words have a letter, under {bound}")
        found = len(set(self.stop_words).intersection(words))
        if self.min_stop_words and found < self.min_stop_words:
            yield Rejected("gopher_enough_stop_words", f"{found} stop words, fewer than {self.min_stop_words}")


def share(part: int, whole: int) -> float:
    """Return ``part / whole``; 0 of nothing."""
    return part / whole if whole else 0.0
