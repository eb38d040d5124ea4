"""A shuffle buffer: the order of chance, the same for the same seed."""

import random
from collections.abc import Iterator

from .items import Item


class Shuffle:
    """Holds a number of documents; each that comes in lets one of them out."""

    def __init__(self, size: int, seed: int) -> None:
        """Hold ``size`` documents; ``seed`` decides the order, and nothing else does."""
        self._size = size
        self._held: list[Item] = []
        self._random = random.Random(seed)  # noqa: S311 - for variety, not secrecy

    def exchange(self, item: Item) -> Item | None:
        """Take a document in; return one of those held, or None while the buffer is filling."""
        if len(self._held) < self._size:
            self._held.append(item)
            return None
        # random() alone is promised to be the same in every Python (docs.python.org, "Notes on Reproducibility").
        place = int(self._random.random() * self._size)
        out, self._held[place] = self._held[place], item
        return out

    def rest(self) -> Iterator[Item]:
        """Yield those still held, in an order of chance."""
        while self._held:
            place = int(self._random.random() * len(self._held))
            self._held[place], self._held[-1] = self._held[-1], self._held[place]
            yield self._held.pop()
