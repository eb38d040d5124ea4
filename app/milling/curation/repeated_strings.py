"""Counting strings that come again, for kernels: hash tables whose hits are confirmed by comparing bytes."""

import numpy as np
import numpy.typing as npt

from .byte_strings import Bytes, equal_bytes, hash_bytes
from .compiled import compiled
from .part import count_characters

Numbers = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]


@compiled
def slots_for(count: int) -> int:
    """Return the size of a table for so many strings: a power of two, at most half full."""
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@compiled
def first_like(data: Bytes, begin: Numbers, end: Numbers, number: int, slots: Slots, size: int, seed: np.uint64) -> int:
    """Return the number of the first string equal to ``data[begin[number]:end[number]]`` in ``slots[:size]``.

    It is ``number`` itself where the string is new; then it is in the table when the call returns.
    """
    low, length = begin[number], end[number] - begin[number]
    mask = np.uint64(size - 1)
    slot = hash_bytes(data, low, end[number], seed) & mask
    while slots[slot]:
        other = slots[slot] - 1
        if end[other] - begin[other] == length and equal_bytes(data, low, data, begin[other], length):
            return other
        slot = (slot + np.uint64(1)) & mask
    slots[slot] = number + 1
    return number


@compiled
def repeated(data: Bytes, begin: Numbers, end: Numbers, count: int, slots: Slots, seed: np.uint64) -> tuple[int, int]:
    """Return how many of the first ``count`` strings came before, and how many characters these have together."""
    size = slots_for(count)
    slots[:size] = 0
    elements = characters = 0
    for number in range(count):
        if first_like(data, begin, end, number, slots, size, seed) != number:
            elements += 1
            characters += count_characters(data, begin[number], end[number])
    return elements, characters
