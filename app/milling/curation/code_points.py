"""Code points of a chunk, and sets of strings, for kernels."""

from typing import Final

import numpy as np
import numpy.typing as npt

from .compiled import compiled
from .english_rules import HASH_FACTOR, HASH_SEED

LEFT_TO_SPACY: Final = -1
"""The answer where a kernel does not know how spaCy cuts a chunk."""
HASH_START: Final = np.uint64(HASH_SEED)
HASH_STEP: Final = np.uint64(HASH_FACTOR)

Characters = npt.NDArray[np.int32]
Classes = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.uint64]


@compiled
def hash_of(text: Characters, low: int, high: int) -> np.uint64:
    """Return `string_hash` of ``text[low:high]``."""
    value = HASH_START
    for at in range(low, high):
        value = (value ^ np.uint64(text[at])) * HASH_STEP
    return value if value != np.uint64(0) else np.uint64(1)


@compiled
def is_in(table: npt.NDArray[np.uint64], value: np.uint64) -> bool:
    """Return whether a hash is in a set of `EnglishRules`."""
    mask = np.uint64(len(table) - 1)
    at = value & mask
    while table[at] != np.uint64(0):
        if table[at] == value:
            return True
        at = (at + np.uint64(1)) & mask
    return False


@compiled
def is_digit(character: int) -> bool:
    """Return whether it is one of the ASCII digits."""
    return 48 <= character <= 57
