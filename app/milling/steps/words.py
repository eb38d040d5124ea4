"""The step ``words``: documents with words of a list are filtered out, where they have any or too many of them.

datatrove's ``C4BadWordsFilter`` fetches its lists and keeps a random part of what it finds; here the list is the user's
own, and the answer depends on the document alone.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tokenmill.documents import Document
from tokenmill.parameters import ListFile, canonical_lines, list_entries

from .protocol import EachAlone, Rejected

REMOVED: Final = "document_removed_with_badwords"
"""Filter reason: the text has words of the list."""
_WORD: Final = re.compile(r"\w+")
MAX_PHRASE: Final = 8
"""Words of an entry of the list: each word of a text begins so many phrases that are looked up."""


@dataclass(frozen=True, slots=True)
class WordsStep(EachAlone):
    """Filters out texts in which words or phrases of a list stand, capitals or not."""

    name: ClassVar[str] = "words"

    words: tuple[str, ...] | ListFile
    """The words and phrases, or a file with one a line. Words are runs of letters, digits and ``_``; for scripts that
    put no space between words, use ``regex``."""
    max_share: float = 0.0
    """Largest share of a text's words that may be listed; 0 filters out every text with one of them."""
    _phrases: frozenset[tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _lengths: dict[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """Of the phrases that begin with a word, longest first."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_share < 1:
            raise ValueError(f"max_share = {self.max_share}: a share is from 0 to below 1")
        try:
            phrases = _phrases(list_entries(self.words))
        except ValueError as error:
            raise ValueError(f"words: {error}") from error
        lengths: dict[str, set[int]] = {}
        for phrase in phrases:
            lengths.setdefault(phrase[0], set()).add(len(phrase))
        ordered = {word: tuple(sorted(found, reverse=True)) for word, found in lengths.items()}
        object.__setattr__(self, "_phrases", phrases)
        object.__setattr__(self, "_lengths", ordered)

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or `REMOVED`. Each word counts once: in the longest phrase of those that begin first."""
        words = split_words(document.text)
        if self._lengths.keys().isdisjoint(words):
            return document
        listed, first, at = 0, "", 0
        while at < len(words):
            sizes = self._lengths.get(words[at], ())  # of phrases, the longest first
            size = next((size for size in sizes if tuple(words[at : at + size]) in self._phrases), 0)
            first = first or " ".join(words[at : at + size])
            listed += size
            at += size or 1
        if listed <= self.max_share * len(words):
            return document
        return Rejected(REMOVED, f"{listed:,} of {len(words):,} words are listed, the first is {first!r}")

    @staticmethod
    def list_form(content: bytes, _values: Mapping[str, Any], /) -> bytes:
        """Return the canonical form of a list of words. Raises ValueError: no UTF-8, no word, an entry of too many."""
        canonical = canonical_lines(content)
        _phrases(ListFile.of(canonical).lines())
        return canonical


def _phrases(entries: Iterable[str]) -> frozenset[tuple[str, ...]]:
    phrases = frozenset(tuple(split_words(entry)) for entry in entries) - {()}
    longest = max(phrases, key=len, default=())
    if not phrases:
        raise ValueError("it has no word: put one on each line")
    if len(longest) > MAX_PHRASE:
        raise ValueError(f"{' '.join(longest)!r} has more than {MAX_PHRASE} words: correct the list")
    return phrases


def split_words(text: str) -> list[str]:
    """Return the runs of letters, digits and ``_``, in small letters."""
    return _WORD.findall(text.lower())
