"""Consecutive items of different sizes: where each begins, and how they are divided."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Bounds = npt.NDArray[np.int64]


def join_bounds(parts: Iterable[Bounds]) -> Bounds:
    """Join the bounds of several parts into one array that starts at 0; ``[0]`` where there are no parts."""
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *map(np.diff, parts)]))


def divide(sizes: npt.NDArray[np.int64], *, items: int, room: int) -> Iterator[tuple[int, int]]:
    """Divide items into ranges ``[low, high)`` of at most ``items`` items and a total size of at most ``room``.

    An item larger than ``room`` gets a range of its own.
    """
    size_to = np.append(0, np.cumsum(sizes))
    low = 0
    while low < len(sizes):
        fitting = int(np.searchsorted(size_to, size_to[low] + room, side="right")) - 1
        high = min(max(fitting, low + 1), low + items, len(sizes))
        yield low, high
        low = high
