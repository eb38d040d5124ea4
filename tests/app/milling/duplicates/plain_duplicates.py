"""Duplicates by the words of docs/format.md, plainly: sets, lists and loops."""

import re
from collections.abc import Sequence
from typing import Any

import xxhash

from tokenmill.app.milling.duplicates.signatures import SLICES, Deduplication, Near

UNSPACED = [(0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)]
UNSPACED += [(0xF900, 0xFAFF), (0x20000, 0x3FFFF)]
LARGEST = (1 << 32) - 1


def hash_of(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


def shingles_of(near: Near, text: str) -> set[str]:
    """Return the runs of words of a text that is folded already."""
    spread = "".join(f" {one} " if any(low <= ord(one) <= high for low, high in UNSPACED) else one for one in text)
    words = spread.split()
    return {" ".join(words[at : at + near.shingle]) for at in range(len(words) - near.shingle + 1)}


def mixed(value: int) -> int:
    """Return the finalizer of MurmurHash3."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B & LARGEST
    value = (value ^ (value >> 13)) * 0xC2B2AE35 & LARGEST
    return value ^ (value >> 16)


def smallest_of(near: Near, shingles: set[str]) -> list[int]:
    values = [mixed(hash_of(shingle.encode()) & LARGEST) for shingle in shingles]
    found = []
    for number in range(near.bands * near.rows):
        factor = hash_of((2 * number).to_bytes(8, "little")) & LARGEST | 1
        term = hash_of((2 * number + 1).to_bytes(8, "little")) & LARGEST
        found.append(min((factor * value + term) & LARGEST for value in values))
    return found


def signature_of(deduplication: Deduplication, text: str) -> list[int]:
    if deduplication.fold:
        text = re.sub(r"\s+", " ", " ".join(text.lower().split()))
    exact = hash_of(text.encode()) or 1
    if not isinstance(deduplication, Near):
        return [exact]
    shingles = shingles_of(deduplication, text)
    if not shingles:
        return [exact, *[0] * (deduplication.bands - 1), exact]
    smallest, bands = smallest_of(deduplication, shingles), []
    for band in range(deduplication.bands):
        rows = smallest[band * deduplication.rows : (band + 1) * deduplication.rows]
        bands.append(hash_of(b"".join(value.to_bytes(4, "little") for value in (band, *rows))) or 1)
    return [*bands, exact]


class PlainWindow:
    """All documents that were kept, in a list."""

    def __init__(self, deduplication: Deduplication) -> None:
        self._deduplication = deduplication
        self.kept: list[tuple[list[int], tuple[int, int]]] = []

    def judge(self, signature: Sequence[int], place: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return what the next document is (0 kept, 1 exact, 2 near), and the place that its verdict has."""
        size = self._deduplication.window // SLICES
        oldest = max(0, len(self.kept) // size - SLICES + 1) * size
        for other, where in self.kept[oldest:]:
            entries = range(self._deduplication.entries)
            if any(signature[at] and signature[at] == other[at] for at in entries):
                return (1 if signature[-1] == other[-1] else 2), where
        self.kept.append((list(signature), place))
        return 0, place


def plainly(deduplication: Deduplication, texts: Sequence[str]) -> list[tuple[int, tuple[int, int]]]:
    """Return the verdicts of texts whose places are (0, 0), (0, 1) and so on."""
    window: Any = PlainWindow(deduplication)
    return [window.judge(signature_of(deduplication, text), (0, at)) for at, text in enumerate(texts)]
