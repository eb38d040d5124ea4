"""Consecutive items of different sizes: where each begins, and how they are divided."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Bounds = npt.NDArray[np.int64]


def join_bounds(parts: Iterable[Bounds]) -> Bounds:
    """Return the bounds, from 0, of the items of all parts behind each other; ``[0]`` where there are none."""
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *map(np.diff, parts)]))


def divide(sizes: npt.NDArray[np.int64], *, items: int, room: int) -> Iterator[tuple[int, int]]:
    """Divide items of these sizes into ranges ``[low, high)`` of at most so many and of at most ``room`` together.

    An item that is larger by itself stands alone.
    """
    size_to = np.append(0, np.cumsum(sizes))
    low = 0
    while low < len(sizes):
        fitting = int(np.searchsorted(size_to, size_to[low] + room, side="right")) - 1
        high = min(max(fitting, low + 1), low + items, len(sizes))
        yield low, high
        low = high
