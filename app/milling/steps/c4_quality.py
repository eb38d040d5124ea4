"""The step ``c4_quality``: lines that are no sentences are removed, and documents with little left are filtered out.

Rules of C4 (Raffel et al. 2020, https://jmlr.org/papers/v21/20-074.html, section 2.2) as datatrove 0.10.1 has them in
``C4QualityFilter``: the same parameters, defaults, reasons and order, the text included.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from tokenmill.documents import Document

from ..curation.words import english
from .protocol import EnglishFilter, Rejected

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
