"""The filter ``gopher_repetition``: documents whose lines, paragraphs or sequences of words repeat themselves.

Rules of Gopher (Rae et al. 2021, https://arxiv.org/abs/2112.11446, table A1) as datatrove 0.10.1 has them in
``GopherRepetitionFilter``: the same parameters, defaults, reasons and order. All shares of characters are of the whole
text, white space included, though sequences of words are counted without the white space of the text.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from tokenmill.documents import Document

from ..curation.words import english
from .protocol import EnglishFilter, Rejected

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
