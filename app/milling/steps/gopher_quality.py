"""The filter ``gopher_quality``: documents with unusual words, symbols, bullets or few English stop words.

Rules of Gopher (Rae et al. 2021, https://arxiv.org/abs/2112.11446, appendix A1) as datatrove 0.10.1 has them in
``GopherQualityFilter``: the same parameters, defaults, reasons and order. Where datatrove divides by zero (a text
without words and ``min_doc_words = 0``), shares here are 0.
"""

from dataclasses import dataclass
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
        words = english().words(document.text)
        return (
            self._by_length(words)
            or self._by_symbols(document.text, len(words))
            or self._by_lines(document.text.splitlines())
            or self._by_content(words)
            or document
        )

    def _by_length(self, words: tuple[str, ...]) -> Rejected | None:
        lengths = [len(word) for word in words if not SYMBOLS.issuperset(word)]
        count = len(lengths)
        if self.min_doc_words and count < self.min_doc_words:
            return Rejected("gopher_short_doc", f"{count:,} words, fewer than {self.min_doc_words:,}")
        if self.max_doc_words and count > self.max_doc_words:
            return Rejected("gopher_long_doc", f"{count:,} words, more than {self.max_doc_words:,}")
        mean = sum(lengths) / count if count else nan  # no bound holds for a mean of nothing
        if self.min_avg_word_length and mean < self.min_avg_word_length:
            return Rejected(
                "gopher_below_avg_threshold", f"{mean:.4g} characters a word, under {self.min_avg_word_length}"
            )
        if self.max_avg_word_length and mean > self.max_avg_word_length:
            return Rejected(
                "gopher_above_avg_threshold", f"{mean:.4g} characters a word, over {self.max_avg_word_length}"
            )
        return None

    def _by_symbols(self, text: str, words: int) -> Rejected | None:
        bound = self.max_symbol_word_ratio
        hashes = share(text.count("#"), words)
        if bound and hashes > bound:
            return Rejected("gopher_too_many_hashes", f"{hashes:.4g} number signs a word, over {bound}")
        ellipses = share(text.count("...") + text.count("…"), words)
        if bound and ellipses > bound:
            return Rejected("gopher_too_many_ellipsis", f"{ellipses:.4g} ellipses a word, over {bound}")
        return None

    def _by_lines(self, lines: list[str]) -> Rejected | None:
        bound = self.max_bullet_lines_ratio
        bullets = share(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines))
        if bound and bullets > bound:
            return Rejected("gopher_too_many_bullets", f"{bullets:.4g} of lines begin with a bullet, over {bound}")
        bound = self.max_ellipsis_lines_ratio
        ends = share(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines))
        if bound and ends > bound:
            return Rejected("gopher_too_many_end_ellipsis", f"{ends:.4g} of lines end with an ellipsis, over {bound}")
        return None

    def _by_content(self, words: tuple[str, ...]) -> Rejected | None:
        bound = self.max_non_alpha_words_ratio
        letters = share(sum(any(map(str.isalpha, word)) for word in words), len(words))
        if bound and letters < bound:
            return Rejected("gopher_below_alpha_threshold", f"{letters:.4g} of words have a letter, under {bound}")
        found = len(set(self.stop_words).intersection(words))
        if self.min_stop_words and found < self.min_stop_words:
            return Rejected("gopher_enough_stop_words", f"{found} stop words, fewer than {self.min_stop_words}")
        return None


def share(part: int, whole: int) -> float:
    """Return ``part / whole``; 0 of nothing."""
    return part / whole if whole else 0.0
