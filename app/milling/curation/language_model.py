"""fastText's model of languages as arrays for a kernel: the file of a quantized classifier, read in full.

The layout is that of ``FastText::saveModel`` (https://github.com/facebookresearch/fastText, version 12 of its format).
"""

import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .byte_strings import PADDING, Bytes

HIERARCHICAL_SOFTMAX: Final = 1
CLASSIFIER: Final = 3
END_OF_LINE: Final = b"</s>"
"""The word that stands for the end of a text, and ends it where it stands inside."""
_FORMAT: Final = (793_712_314, 12)
_CODES: Final = 256
_NO_COUNT: Final = 10**15


class LanguageModel(NamedTuple):
    """What the kernel reads. A row is the vector of a word or of an n-gram of characters."""

    rows: npt.NDArray[np.float32]
    """Shape ``[rows, dimensions]``."""
    grams: npt.NDArray[np.uint16]
    """Shape ``[buckets]``: of the hash of each n-gram its row plus one, 0 where it was pruned."""
    slots: npt.NDArray[np.int32]
    """The entries, counted from 1, by the hash of their bytes."""
    begin: npt.NDArray[np.int64]
    """Shape ``[entries + 1]``: where each begins in ``text``. Words come first, then labels."""
    text: Bytes
    """All entries, and eight bytes more."""
    words: int
    end_row: int
    """Row of `END_OF_LINE`; -1 without one."""
    shortest: int
    """Characters of an n-gram."""
    longest: int
    left: npt.NDArray[np.int32]
    """Shape ``[nodes]``, as the next: the tree of labels, -1 at a leaf. Leaves come first, the root is the last one."""
    right: npt.NDArray[np.int32]
    output: npt.NDArray[np.float32]
    """Shape ``[labels, dimensions]``: of inner nodes."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return found

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        found = np.frombuffer(self.data, dtype, count, self.at)
        self.at += found.nbytes
        return found

    def string(self) -> bytes:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end]
        self.at = end + 1
        return found


def read_model(file: Path) -> tuple[LanguageModel, list[str]]:
    """Return the model and its labels.

    Raises ValueError where the file is none of a quantized classifier with a tree of labels, or longer than what is in
    it.
    """
    reader = _Reader(file.read_bytes())
    if reader.numbers("2i") != _FORMAT:
        raise ValueError(f"{file}: no fastText model of format {_FORMAT[1]}")
    _, _, _, _, _, word_n_grams, loss, kind, buckets, shortest, longest, _ = reader.numbers("12i")
    reader.numbers("d")
    size, words, _, _, kept = reader.numbers("3i2q")
    entries, counts = [], []
    for _ in range(size):
        entries.append(reader.string())
        counts.append(reader.numbers("qb")[0])
    pruned = reader.array("<i4", 2 * kept).reshape(kept, 2)
    if (word_n_grams, loss, kind, *reader.numbers("?")) != (1, HIERARCHICAL_SOFTMAX, CLASSIFIER, True):
        raise ValueError(f"{file}: no quantized classifier with a tree of labels")
    rows = _quantized(reader)
    if reader.numbers("?") != (False,):
        raise ValueError(f"{file}: its output is quantized too")
    height, width = reader.numbers("2q")
    output = reader.array("<f4", height * width).reshape(height, width).copy()
    if reader.at != len(reader.data):
        raise ValueError(f"{file}: longer than what is in it")
    grams = np.zeros(buckets, np.uint16)
    grams[pruned[:, 0]] = words + pruned[:, 1] + 1
    left, right = _tree(counts[words:])
    model = LanguageModel(
        rows=rows,
        grams=grams,
        slots=_slots(entries),
        begin=np.cumsum([0, *map(len, entries)], dtype=np.int64),
        text=np.frombuffer(bytearray(b"".join(entries) + bytes(PADDING)), np.uint8),
        words=words,
        end_row=entries.index(END_OF_LINE) if END_OF_LINE in entries[:words] else -1,
        shortest=shortest,
        longest=longest,
        left=left,
        right=right,
        output=output,
    )
    return model, [entry.decode() for entry in entries[words:]]


def _quantized(reader: _Reader) -> npt.NDArray[np.float32]:
    """Return the rows of a matrix that is stored as codes: of a norm each, and of parts of the direction."""
    has_norms, height, width, codes = reader.numbers("?2qi")
    parts = reader.array("u1", codes).reshape(height, -1)
    _, count, size, last = reader.numbers("4i")
    centroids = reader.array("<f4", width * _CODES)
    columns = []
    for part in range(count):
        wide = last if part == count - 1 else size
        begin = part * _CODES * size
        columns.append(centroids[begin : begin + _CODES * wide].reshape(_CODES, wide)[parts[:, part]])
    rows = np.concatenate(columns, axis=1)
    if has_norms:
        norms = reader.array("u1", height)
        reader.numbers("4i")
        rows = rows * reader.array("<f4", _CODES)[norms][:, None]
    return np.ascontiguousarray(rows, np.float32)


def _tree(counts: list[int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the children of each node: Huffman's tree over labels whose counts descend (``buildTree``)."""
    labels = len(counts)
    weights = [*counts, *[_NO_COUNT] * (labels - 1)]
    left, right = np.full(2 * labels - 1, -1, np.int32), np.full(2 * labels - 1, -1, np.int32)
    leaf, node = labels - 1, labels
    for parent in range(labels, 2 * labels - 1):
        chosen = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                chosen.append(leaf)
                leaf -= 1
            else:
                chosen.append(node)
                node += 1
        left[parent], right[parent] = chosen
        weights[parent] = weights[chosen[0]] + weights[chosen[1]]
    return left, right


def gram_hash(data: bytes) -> int:
    """Return fastText's hash: FNV-1a in 32 bits, over signed bytes."""
    value = 2_166_136_261
    for byte in data:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16_777_619) & 0xFFFFFFFF  # noqa: PLR2004
    return value


def _slots(entries: list[bytes]) -> npt.NDArray[np.int32]:
    slots = np.zeros(1 << (4 * len(entries)).bit_length(), np.int32)
    for number, entry in enumerate(entries):
        at = gram_hash(entry) & (len(slots) - 1)
        while slots[at]:
            at = (at + 1) & (len(slots) - 1)
        slots[at] = number + 1
    return slots
