"""The step ``language`` for many documents: by a kernel, believed as long as it agrees with fastText.

The model is the file of a quantized classifier, read in full; its layout is that of ``FastText::saveModel``
(https://github.com/facebookresearch/fastText, version 12 of its format). The kernel finds the most likely label of a
text, with the arithmetic of fastText, step by step. A text is the mean of its rows: each word's, if it is known, and
those of all n-grams of characters within each word and its two brackets. The label is found in a tree, at each of whose
nodes a sigmoid decides (``FastText::predictLine``).
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tokenmill.errors import EngineError, RecordError

from ..document_columns import DocumentColumns
from ..steps.language import FIRST_LOOK, SURE, LanguageStep, language_named, model_file
from ..steps.protocol import Answer
from .choosing import KernelStep
from .chunk_words import hash_slots
from .compiled import Bytes, Numbers, compiled, equal_bytes, laid_out

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
    begin: Numbers
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
    """Return the model and its labels. Raises ValueError where the file holds another kind, or is longer."""
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
    text, begin = laid_out(entries)
    model = LanguageModel(
        rows=rows,
        grams=grams,
        slots=hash_slots([gram_hash(entry) for entry in entries]),
        begin=begin,
        text=text,
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
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16_777_619) & 0xFFFFFFFF
    return value


NO_LABEL: Final = -1
_OFFSET: Final = np.uint32(2_166_136_261)
_PRIME: Final = np.uint32(16_777_619)
_SIGN: Final = np.uint32(0xFFFFFF00)
_BEGIN, _END = map(ord, "<>")
_LABEL: Final = np.frombuffer(bytearray(b"__label__" + bytes(8)), np.uint8)
_LABEL_BYTES: Final = 9
_LITTLE: Final = 1e-5
"""What fastText adds before a logarithm."""


@compiled
def likeliest(
    model: LanguageModel,
    data: Bytes,
    begin: Numbers,
    end: Numbers,
    labels: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
    mean: npt.NDArray[np.float32],
    nodes: npt.NDArray[np.int32],
    paths: npt.NDArray[np.float32],
) -> None:
    """Fill label and score of each text ``data[begin:end]``; `NO_LABEL` where the model sees nothing.

    The last three are room: for a row, and for as many nodes as the tree has.
    """
    for text in range(len(begin)):
        if _mean_row(model, data, begin[text], end[text], mean) == 0:
            labels[text], scores[text] = NO_LABEL, 0
        else:
            labels[text], scores[text] = _label(model, mean, nodes, paths)


@compiled
def _mean_row(model: LanguageModel, data: Bytes, at: int, end: int, mean: npt.NDArray[np.float32]) -> int:
    """Fill ``mean``; return how many rows it is of."""
    mean[:] = 0
    count = 0
    while at < end:
        if _separates(data[at]):
            at += 1
            continue
        low, value = at, _OFFSET
        while at < end and not _separates(data[at]):
            value = _hashed(value, data[at])
            at += 1
        entry = _entry(model, data, low, at, value)
        if entry >= 0 and entry == model.end_row:
            break  # fastText reads a line, and this is how it names a line's end
        if entry >= model.words or (entry < 0 and _is_label(data, low, at)):
            continue
        if entry >= 0:
            _add(model.rows, entry, mean)
            count += 1
        count += _add_grams(model, data, low, at, mean)
    if model.end_row >= 0:
        _add(model.rows, model.end_row, mean)
        count += 1
    share = np.float32(1.0 / count) if count else np.float32(0)
    for place in range(len(mean)):
        mean[place] *= share
    return count


@compiled
def _separates(byte: int) -> bool:
    return byte in (0x20, 0) or 9 <= byte <= 13


@compiled
def _hashed(value: np.uint32, byte: int) -> np.uint32:
    signed = np.uint32(byte) | _SIGN if byte >= 0x80 else np.uint32(byte)
    return np.uint32((value ^ signed) * _PRIME)


@compiled
def _entry(model: LanguageModel, data: Bytes, low: int, high: int, value: np.uint32) -> int:
    mask = len(model.slots) - 1
    slot = np.int64(value) & mask
    while model.slots[slot]:
        entry = model.slots[slot] - 1
        begin = model.begin[entry]
        if model.begin[entry + 1] - begin == high - low and equal_bytes(data, low, model.text, begin, high - low):
            return int(entry)
        slot = (slot + 1) & mask
    return -1


@compiled
def _is_label(data: Bytes, low: int, high: int) -> bool:
    return high - low >= _LABEL_BYTES and equal_bytes(data, low, _LABEL, 0, _LABEL_BYTES)


@compiled
def _add(rows: npt.NDArray[np.float32], row: int, mean: npt.NDArray[np.float32]) -> None:
    for place in range(len(mean)):
        mean[place] += rows[row, place]


@compiled
def _add_grams(model: LanguageModel, data: Bytes, low: int, high: int, mean: npt.NDArray[np.float32]) -> int:
    """Add the rows of the n-grams of ``<``, ``data[low:high]`` and ``>``; return how many there are."""
    count, buckets = 0, np.uint32(len(model.grams))
    for start in range(low - 1, high + 1):
        if start >= low and start < high and (data[start] & 0xC0) == 0x80:
            continue
        value, at = _OFFSET, start
        for length in range(1, model.longest + 1):
            if at > high:
                break
            value = _hashed(value, _BEGIN if at < low else (_END if at == high else data[at]))
            at += 1
            while low < at < high and (data[at] & 0xC0) == 0x80:
                value = _hashed(value, data[at])
                at += 1
            if length >= model.shortest and not (length == 1 and (start < low or at > high)):
                row = model.grams[value % buckets]
                if row:
                    _add(model.rows, int(row) - 1, mean)
                    count += 1
    return count


@compiled
def _label(
    model: LanguageModel, mean: npt.NDArray[np.float32], nodes: npt.NDArray[np.int32], paths: npt.NDArray[np.float32]
) -> tuple[int, np.float32]:
    labels = len(model.output)
    best, most = NO_LABEL, np.float32(math.log(_LITTLE))
    nodes[0], paths[0] = len(model.left) - 1, 0
    left = 1
    while left:
        left -= 1
        node, path = nodes[left], paths[left]
        if path < most:
            continue
        if model.left[node] < 0:
            best, most = node, path
            continue
        total = np.float32(0)
        for place in range(len(mean)):
            total += model.output[node - labels, place] * mean[place]
        share = np.float32(1.0 / np.float64(np.float32(1) + np.float32(math.exp(-total))))
        nodes[left], nodes[left + 1] = model.right[node], model.left[node]
        paths[left] = path + _log(share)
        paths[left + 1] = path + _log(np.float32(1.0 - np.float64(share)))
        left += 2
    return best, np.float32(math.exp(most)) if best >= 0 else np.float32(0)


@compiled
def _log(share: np.float32) -> np.float32:
    return np.float32(math.log(np.float64(share) + _LITTLE))


SHOWN_CHARACTERS: Final = 60
"""Of a text that is judged otherwise than by the reference: enough to find it, short enough for a line of the log."""
SAMPLE_ONE_IN: Final = 1024
"""One document in this many is asked of fastText as well, which takes eight times as long as the kernel."""


@dataclass(frozen=True, slots=True)
class FastLanguage(KernelStep):
    """A step that is fastText for one document, and a kernel for many."""

    reference: LanguageStep
    model: LanguageModel
    labels: list[str]

    @classmethod
    def of(cls, reference: LanguageStep) -> Self:
        """Return the step with a kernel. Raises ValueError where the installed model is of another kind than its."""
        return cls(reference, *_read(model_file()))

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Answer, after a sample's languages and scores were compared with those of fastText."""
        found = self.languages_of(documents.texts)
        for text, one in zip(documents.texts, found, strict=True):
            if crc32(text[:FIRST_LOOK].encode()) % SAMPLE_ONE_IN == 0:
                self._compare(text, one)
        return list(self._answers(documents, found))

    def check(self, texts: Sequence[str]) -> None:
        """Compare all of them."""
        for text, one in zip(texts, self.languages_of(texts), strict=True):
            self._compare(text, one)

    def languages_of(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Return language and score of each text, after one look or two, as `LanguageStep.look_at` does."""
        step = self.reference
        first = [step.seen(text, FIRST_LOOK) for text in texts]
        found = self._look(first)
        unsure = {i: step.seen(texts[i], step.beginning) for i, (_, score) in enumerate(found) if score < SURE}
        longer = {index: text for index, text in unsure.items() if text != first[index]}
        for index, one in zip(longer, self._look(list(longer.values())), strict=True):
            found[index] = one
        return found

    def _look(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        data, bounds = laid_out([self.reference.asked(text).encode() for text in texts])
        labels, scores = np.empty(len(texts), np.int32), np.empty(len(texts), np.float32)
        nodes = len(self.model.left)
        room = np.empty(self.model.rows.shape[1], np.float32), np.empty(nodes, np.int32), np.empty(nodes, np.float32)
        likeliest(self.model, data, bounds[:-1], bounds[1:], labels, scores, *room)
        names = [None if label == NO_LABEL else self.labels[label] for label in labels.tolist()]
        return [language_named(name, score) for name, score in zip(names, scores.tolist(), strict=True)]

    def _compare(self, text: str, one: tuple[str, float]) -> None:
        right = self.reference.look_at(text)
        if one != right:
            raise EngineError(
                f"{self.name}: the kernel says {one} and fastText {right} of the text that begins with "
                f"{text[:SHOWN_CHARACTERS]!a}"
            )

    def _answers(self, documents: DocumentColumns, found: list[tuple[str, float]]) -> Iterator[tuple[int, Answer]]:
        step = self.reference
        for index, (language, score) in enumerate(found):
            if step.stays(language, score):
                continue
            document = documents.at(index)
            answer: Answer
            try:
                answer = step.answer(document, language, score)
            except RecordError as error:
                answer = error
            if answer is not document:
                yield index, answer


@cache
def _read(file: Path) -> tuple[LanguageModel, list[str]]:
    return read_model(file)
