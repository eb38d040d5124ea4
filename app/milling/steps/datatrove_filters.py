"""Filters of Gopher, C4, mC4 and FineWeb as datatrove 0.10.1 has them: the same parameters, reasons and order.

- `GopherRepetition` and `GopherQuality` are rules of Gopher (Rae et al. 2021, https://arxiv.org/abs/2112.11446, table
  A1). All shares of characters are of the whole text, white space included, though sequences of words are counted
  without the white space of the text. Where datatrove divides by zero (a text without words and ``min_doc_words = 0``),
  shares here are 0.
- `C4Quality` are rules of C4 (Raffel et al. 2020, https://jmlr.org/papers/v21/20-074.html, section 2.2).
- `C4Paragraph` is a rule of mC4 (Xue et al. 2021, https://arxiv.org/abs/2010.11934), with fixed numbers. Its reason,
  "< 3 paragraphs", is ``too_few_paragraphs`` here.
- `FinewebQuality` are rules of FineWeb (Penedo et al. 2024, https://arxiv.org/abs/2406.17557, section 3.6).
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from typing import ClassVar, Final

from tokenmill.documents import Document

from ..curation.words import SYMBOLS, TERMINAL, english
from .protocol import EachAlone, EnglishFilter, Rejected

MAX_N: Final = 32
"""Most words of a sequence: each is put together again at every word, so a larger one costs more of time and memory."""
_PARAGRAPH_ENDS: Final = re.compile(r"\n{2,}")
_LINE_ENDS: Final = re.compile(r"\n+")


@dataclass(frozen=True, slots=True)
class GopherRepetition(EnglishFilter):
    """Filters by the share of what occurs again; a bound of lines or paragraphs that is 0 or null is not looked at."""

    name: ClassVar[str] = "gopher_repetition"

    dup_line_frac: float | None = 0.3
    """Largest share of lines that occurred before."""
    dup_para_frac: float | None = 0.3
    """Largest share of paragraphs that occurred before; an empty line or more ends a paragraph."""
    dup_line_char_frac: float | None = 0.2
    """Largest share of characters in lines that occurred before."""
    dup_para_char_frac: float | None = 0.2
    """Largest share of characters in paragraphs that occurred before."""
    top_n_grams: tuple[tuple[int, float], ...] = ((2, 0.2), (3, 0.18), (4, 0.16))
    """Pairs of n and the largest share of characters in the most frequent sequence of n words."""
    dup_n_grams: tuple[tuple[int, float], ...] = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    """Pairs of n and the largest share of characters in sequences of n words that occurred before."""

    def __post_init__(self) -> None:
        for parameter in ("top_n_grams", "dup_n_grams"):
            for n, _ in getattr(self, parameter):
                if not 1 <= n <= MAX_N:
                    raise ValueError(f"{parameter} has sequences of {n} words: set n to 1 to {MAX_N}")

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document; or the reason of the first rule that it breaks.

        ``empty``, ``dup_para_frac``, ``dup_para_char_frac``, ``dup_line_frac``, ``dup_line_char_frac``,
        ``top_{n}_gram``, ``duplicated_{n}_n_grams``.
        """
        text = document.text
        if not text:
            return Rejected("empty", "no text")
        paragraphs = _PARAGRAPH_ENDS.split(text.strip())
        return (
            _repeated(paragraphs, text, "para", self.dup_para_frac, self.dup_para_char_frac)
            or _repeated(_LINE_ENDS.split(text), text, "line", self.dup_line_frac, self.dup_line_char_frac)
            or self._by_sequences(english().words(text), len(text))
            or document
        )

    def _by_sequences(self, words: tuple[str, ...], characters: int) -> Rejected | None:
        for n, bound in self.top_n_grams:
            ratio = top_sequence_characters(words, n) / characters
            if len(words) >= n and ratio > bound:
                return Rejected(f"top_{n}_gram", f"the top {n}-gram has {ratio:.4g} of characters, over {bound}")
        for n, bound in self.dup_n_grams:
            ratio = repeated_sequence_characters(words, n) / characters
            if ratio > bound:
                detail = f"repeated {n}-grams have {ratio:.4g} of characters, over {bound}"
                return Rejected(f"duplicated_{n}_n_grams", detail)
        return None


def repetitions(items: Iterable[str]) -> tuple[int, int]:
    """Return how many items occurred before, and how many characters these have."""
    seen: set[str] = set()
    count = characters = 0
    for item in items:
        if item in seen:
            count += 1
            characters += len(item)
        else:
            seen.add(item)
    return count, characters


def top_sequence_characters(words: tuple[str, ...], n: int) -> int:
    """Return the characters of all occurrences, which may overlap, of the first most frequent n words with spaces."""
    counts = Counter(" ".join(words[at : at + n]) for at in range(len(words) - n + 1))
    if not counts:
        return 0
    [(sequence, count)] = counts.most_common(1)
    return len(sequence) * count


def repeated_sequence_characters(words: tuple[str, ...], n: int) -> int:
    """Return the characters of all sequences of n words that occurred before, the words joined by nothing.

    The search goes from word to word; behind a repetition it goes on, so that repetitions do not overlap. Sequences are
    compared as they are joined: "ab c" equals "a bc".
    """
    seen: set[str] = set()
    characters = at = 0
    while at + n <= len(words):
        sequence = "".join(words[at : at + n])
        if sequence in seen:
            characters += len(sequence)
            at += n
        else:
            seen.add(sequence)
            at += 1
    return characters


def _repeated(
    items: list[str], text: str, kind: str, most: float | None, most_characters: float | None
) -> Rejected | None:
    count, characters = repetitions(items)
    ratio = count / len(items)
    if most and ratio > most:
        return Rejected(f"dup_{kind}_frac", f"{ratio:.4g} of {_NAMES[kind]} occurred before, over {most}")
    ratio = characters / len(text)
    if most_characters and ratio > most_characters:
        detail = f"{_NAMES[kind]} that occurred before have {ratio:.4g} of characters, over {most_characters}"
        return Rejected(f"dup_{kind}_char_frac", detail)
    return None


_NAMES: Final = {"para": "paragraphs", "line": "lines"}


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


_CITATION: Final = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_END_PUNCTUATION: Final = (".", "?", "!", '"', "'")
_POLICIES: Final = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


@dataclass(frozen=True, slots=True)
class C4Quality(EnglishFilter):
    """Removes lines, and filters out documents that break a rule as a whole or have too few sentences left."""

    name: ClassVar[str] = "c4_quality"

    split_paragraph: bool = True
    """Whether lines are looked at (`str.splitlines`), or else sentences."""
    remove_citations: bool = True
    """Whether [1], [], [edit] and [citation needed] are cut out of lines."""
    filter_no_terminal_punct: bool = True
    """Whether lines are removed that do not end with a full stop, question mark, exclamation mark or quote."""
    min_num_sentences: int = 5
    """Fewest sentences of what is left; -1: any number."""
    min_words_per_line: int = 3
    """Lines of fewer words (`str.split`) are removed; -1: none."""
    max_word_length: int = 1000
    """Lines with a longer word, in characters, are removed; -1: none."""
    filter_lorem_ipsum: bool = True
    """Whether a document is filtered out that has lorem ipsum in a line that would be left."""
    filter_javascript: bool = True
    """Whether lines are removed that have the word javascript."""
    filter_curly_bracket: bool = True
    """Whether a document is filtered out that has an opening curly bracket in a line that would be left."""
    filter_policy: bool = True
    """Whether lines are removed that speak of cookies, privacy policy or terms of use."""

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document with the lines that are left, joined by line feeds (sentences: by spaces), stripped.

        Or a reason: ``lorem_ipsum``, ``curly_bracket``, ``too_few_sentences``.
        """
        text = document.text
        kept: list[str] = []
        for whole in text.splitlines() if self.split_paragraph else english().sentences(text):
            line = self._long_enough(whole.strip())
            if line is None:
                continue
            lowered = line.lower()
            if self.filter_lorem_ipsum and "lorem ipsum" in lowered:
                return Rejected("lorem_ipsum", f"line {len(kept) + 1} of those that would be left")
            if self.filter_javascript and "javascript" in lowered:
                continue
            if self.filter_curly_bracket and "{" in line:
                return Rejected("curly_bracket", f"line {len(kept) + 1} of those that would be left")
            if self.filter_policy and any(policy in lowered for policy in _POLICIES):
                continue
            kept.append(line)
        if self.min_num_sentences != -1:
            count = sum(len(english().sentences(line)) for line in kept) if self.split_paragraph else len(kept)
            if count < self.min_num_sentences:
                detail = f"{count} sentences left, fewer than {self.min_num_sentences}"
                return Rejected("too_few_sentences", detail)
        left = ("\n" if self.split_paragraph else " ").join(kept).strip()
        return document if left == text else document._replace(text=left)

    def _long_enough(self, line: str) -> str | None:
        """Return the line without citations; None if its words or its end say that it is no sentence."""
        words = line.split()
        if self.max_word_length != -1 and any(len(word) > self.max_word_length for word in words):
            return None
        if self.remove_citations:
            line = _CITATION.sub("", line)
        if self.filter_no_terminal_punct and (not line.endswith(_END_PUNCTUATION) or line.endswith("...")):
            return None
        return line if len(words) >= self.min_words_per_line else None


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
        return self._by_lines(lines, len(text) - text.count("\n")) or self._by_words(text) or document

    def _by_lines(self, lines: list[str], characters: int) -> Rejected | None:
        stops = tuple(TERMINAL) if self.stop_chars is None else self.stop_chars
        ratio = sum(line.endswith(stops) for line in lines) / len(lines)
        if ratio < self.line_punct_thr and not (ratio == 0 and self.line_punct_exclude_zero):
            detail = f"{ratio:.4g} of lines end with punctuation, under {self.line_punct_thr}"
            return Rejected("line_punct_ratio", detail)
        ratio = sum(len(line) <= self.short_line_length for line in lines) / len(lines)
        if ratio > self.short_line_thr:
            return Rejected("short_line_ratio", f"{ratio:.4g} of lines are short, over {self.short_line_thr}")
        ratio = repetitions(lines)[1] / characters
        if ratio > self.char_duplicates_ratio:
            detail = f"lines that occurred before have {ratio:.4g} of characters, over {self.char_duplicates_ratio}"
            return Rejected("char_dup_ratio", detail)
        return None

    def _by_words(self, text: str) -> Rejected | None:
        ratio = share(text.count("\n"), len(english().words(text)))  # no word: one that spaCy cannot hold stands alone
        if ratio > self.new_line_ratio:
            return Rejected("list_ratio", f"{ratio:.4g} line feeds a word, over {self.new_line_ratio}")
        return None
