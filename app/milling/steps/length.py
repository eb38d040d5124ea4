"""The step ``length``: texts that are too short or too long, in characters, words or lines, are filtered out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tokenmill.documents import Document
from tokenmill.parameters import describe_step

from ..document_columns import DocumentColumns
from .protocol import Answer, Rejected, each_alone


@dataclass(frozen=True, slots=True)
class LengthStep:
    """Keeps texts whose numbers of characters, words and lines are within bounds."""

    min_chars: int = 0
    """Fewest characters (Unicode code points)."""
    max_chars: int | None = None
    """Most characters."""
    min_words: int = 0
    """Fewest words: parts between white space (`str.split`)."""
    max_words: int | None = None
    """Most words."""
    min_lines: int = 0
    """Fewest lines that are not empty or white space alone; lines end with a line feed."""
    max_lines: int | None = None
    """Most of these lines."""

    def __post_init__(self) -> None:
        """Refuse bounds that no text is within."""
        for unit in ("chars", "words", "lines"):
            low, high = self._bounds(unit)
            if low < 0 or (high is not None and high < low):
                raise ValueError(f"no text has between {low} and {high} {unit}: correct min_{unit} or max_{unit}")

    @property
    def name(self) -> str:
        """``length``."""
        return "length"

    def describe(self) -> dict[str, Any]:
        """Return name, version and all bounds."""
        return describe_step(self, version=1)

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document; or the reason ``min_chars``, ``max_chars``, … of the first bound that it is not within.

        Characters are looked at first, then words, then lines.
        """
        for unit, count in COUNTS.items():
            low, high = self._bounds(unit)
            if not low and high is None:
                continue
            found = count(document.text)
            if found < low:
                return Rejected(f"min_{unit}", f"{found:,} {unit}, fewer than {low:,}")
            if high is not None and found > high:
                return Rejected(f"max_{unit}", f"{found:,} {unit}, more than {high:,}")
        return document

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return those that are filtered out."""
        return each_alone(self, documents)

    def _bounds(self, unit: str) -> tuple[int, int | None]:
        return getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")


def _words(text: str) -> int:
    return len(text.split())


def _lines(text: str) -> int:
    return sum(1 for line in text.split("\n") if line and not line.isspace())


COUNTS: Final[dict[str, Callable[[str], int]]] = {"chars": len, "words": _words, "lines": _lines}
"""How each unit is counted, in the order in which bounds are looked at."""
