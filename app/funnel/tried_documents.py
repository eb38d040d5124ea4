"""Documents of a trial that people are shown: some of each kind, chosen evenly, with a beginning of the text."""

from bisect import bisect_left
from heapq import heappush, heapreplace
from typing import Any, Final, Generic, NamedTuple, TypeVar

import xxhash

SHOWN_CHARACTERS: Final = 400
"""Of a text: five lines of a terminal."""
LEAD_CHARACTERS: Final = 60
"""Characters in front of the first one that a step changed: enough to recognise the place."""
CUT: Final = "…"

T = TypeVar("T")


class TriedDocument(NamedTuple):
    """A document, or what could not become one."""

    place: str
    """File and line."""
    detail: str
    """The numbers that decided; of a kept document, its tokens, with those around the text."""
    text: str
    """Its beginning, as it came to the step that dropped it, or as it is kept; of a changed document, a part of it from
    shortly before the first change on, as it came to the step."""
    after: str | None = None
    """Of a changed document, the same part as the step left it."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        values = self._asdict()
        return values if self.after is not None else {name: values[name] for name in ("place", "detail", "text")}


class EvenSample(Generic[T]):
    """At most ``size`` of many numbered items: those whose numbers have the smallest hashes.

    So every part of the input has its share, the same numbers give the same sample in any order, and a
    caller that asks `wants` first makes no item that would be left out.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, T]] = []

    def wants(self, number: int) -> bool:
        """Return whether the item of this number would be in the sample now."""
        return len(self._heap) < self._size or (self._size > 0 and -_rank(number) > self._heap[0][0])

    def add(self, number: int, item: T) -> None:
        """Take an item in, in place of the one with the largest hash if there are enough; numbers are unique."""
        entry = (-_rank(number), number, item)
        if len(self._heap) < self._size:
            heappush(self._heap, entry)
        elif self._size and entry > self._heap[0]:
            heapreplace(self._heap, entry)

    def items(self) -> list[T]:
        """Return the sample in the order of the numbers."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: entry[1])]


def beginning_of(text: str, characters: int = SHOWN_CHARACTERS) -> str:
    """Return at most so many characters of a text, with a sign where something is left out."""
    return text if len(text) <= characters else f"{text[:characters]}{CUT}"


def where_they_differ(before: str, after: str) -> tuple[str, str]:
    """Return the same part of two texts, from a little before the first difference on."""
    shorter = min(len(before), len(after))
    equal = bisect_left(range(shorter), True, key=lambda at: before[: at + 1] != after[: at + 1])
    start = max(0, equal - LEAD_CHARACTERS)
    sign = CUT if start else ""
    return sign + beginning_of(before[start:]), sign + beginning_of(after[start:])


def _rank(number: int) -> int:
    return xxhash.xxh3_64_intdigest(number.to_bytes(8, "little"))
