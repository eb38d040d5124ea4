"""Signatures: the hashes by which documents are compared. docs/format.md says the arithmetic."""

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import SettingsError

from .parameters import Deduplication, Near

if TYPE_CHECKING:
    from types import ModuleType

Hashes: TypeAlias = npt.NDArray[np.uint64]
NOTHING: Final = 0
"""In place of a band's hash, of a document that has no bands; a hash that is 0 is 1."""
_ALONE: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han. Each is a word."""


def sign(deduplication: Deduplication, texts: Sequence[str]) -> Hashes:
    """Return the signatures of texts; shape ``[texts, width]``: of ``near`` one hash a band, then that of the text.

    Raises SettingsError: numba is not installed.
    """
    if not texts:
        return np.zeros((0, deduplication.width), np.uint64)
    if deduplication.fold:
        texts = [" ".join(text.lower().split()) for text in texts]
    exact = np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in texts), np.uint64, len(texts))
    if isinstance(deduplication, Near):
        return np.maximum(np.column_stack([_bands(deduplication, texts, exact), exact]), _least(deduplication))
    return np.maximum(exact, 1)[:, None]


def _least(near: Near) -> Hashes:
    return np.array([1, *[NOTHING] * (near.bands - 1), 1], np.uint64)


def words_of(text: str) -> str:
    """Return the words of a text with a space between two."""
    if not text.isascii():
        text = _ALONE.sub(r" \g<0> ", text)
    return " ".join(text.split())


def _bands(near: Near, texts: Sequence[str], exact: Hashes) -> Hashes:
    """Return the hash of each band; of a text with too few words, its own hash in the first place alone."""
    native = kernel("signature_kernel")
    encoded = [words_of(text).encode() for text in texts]
    data = np.frombuffer(b" ".join([*encoded, b" " * native.PADDING]), np.uint8)
    stops = np.cumsum([len(words) + 1 for words in encoded]) - 1  # the space behind each text
    ends = np.flatnonzero(data[: stops[-1] + 1] == ord(" "))
    begins = np.append(0, ends[:-1] + 1)
    last = np.searchsorted(ends, stops)  # word of each text
    counts = np.maximum(np.diff(last, prepend=-1) - near.shingle + 1, 0)
    bounds = np.append(0, np.cumsum(counts))
    first = np.append(-1, last[:-1]) + 1
    shingles = np.arange(bounds[-1]) + np.repeat(first - bounds[:-1], counts)
    hashes = _shingle_hashes(data, begins[shingles], ends[shingles + near.shingle - 1])
    smallest = np.full((len(texts), near.bands * near.rows), 0xFFFFFFFF, np.uint32)
    native.smallest_values(hashes, bounds, *permutations(near.bands * near.rows), smallest)
    bands = np.zeros((len(texts), near.bands), np.uint64)
    packed = np.zeros((len(texts), near.bands, 1 + near.rows), "<u4")
    packed[:, :, 0] = np.arange(near.bands)
    packed[:, :, 1:] = smallest.reshape(len(texts), near.bands, near.rows)
    padded = np.append(packed.view(np.uint8), np.zeros(native.PADDING, np.uint8))
    native.hash_bands(padded, packed.itemsize * (1 + near.rows), bands.reshape(-1))
    bands = np.maximum(bands, 1)
    short = counts == 0
    bands[short] = NOTHING
    bands[short, 0] = exact[short]
    return bands


def _shingle_hashes(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Hashes:
    native = kernel("signature_kernel")
    hashes = np.zeros(len(begins), np.uint64)
    native.hash_spans(data, begins, ends, hashes)
    sizes = ends - begins
    for at in np.flatnonzero((sizes < native.SHORTEST) | (sizes > native.LONGEST)).tolist():
        hashes[at] = xxhash.xxh3_64_intdigest(data[begins[at] : ends[at]].tobytes())
    return hashes


@cache
def permutations(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the factors and the terms of the permutations; shape ``[count]`` each."""
    numbers = [xxhash.xxh3_64_intdigest(number.to_bytes(8, "little")) for number in range(2 * count)]
    low = np.array(numbers, np.uint64).astype(np.uint32)
    return low[::2] | np.uint32(1), low[1::2].copy()


def kernel(name: str) -> "ModuleType":
    """Return a module of kernels. Raises SettingsError where numba is not installed."""
    try:
        return import_module(f".{name}", __package__)
    except ImportError as error:
        raise SettingsError(
            f"dedup needs numba, which cannot be loaded ({error}): install tokenmill[curation]"
        ) from error
