"""The step ``decontaminate``: documents that share runs of words with texts of evaluation sets are filtered out.

Overlap of 13 words is what GPT-3 looked for (Brown et al. 2020, appendix C). The list that a stream carries has hashes
of these runs, so the evaluation texts themselves are not on the control topic.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.documents import Document
from tokenmill.parameters import ListFile

from .protocol import EachAlone, Rejected
from .words import split_words

CONTAMINATED: Final = "contaminated"
"""Filter reason: the text has runs of words of an evaluation text."""
N_GRAMS: Final = 13
_FACTOR: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: multiplying by it loses no bit."""
_HASH: Final = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Decontaminate(EachAlone):
    """Filters out texts with more than a few runs of words that stand in texts of evaluation sets.

    Words are runs of letters, digits and ``_`` in small letters; white space and punctuation do not count. A run is
    known by a hash of 64 bits: with a million runs in the list, one run of words in 2 x 10^13 is mistaken for another.
    """

    name: ClassVar[str] = "decontaminate"

    texts: ListFile
    """A file with the evaluation sets: a text a line, or a JSON object a line, each of whose texts counts by itself.
    Texts of fewer than ``n_grams`` words are left out."""
    n_grams: int = N_GRAMS
    """Words of a run."""
    max_matches: int = 0
    """How many places of a document may match a run."""
    _runs: npt.NDArray[np.uint64] = field(init=False, repr=False, compare=False)
    """Hashes of the runs, ascending."""

    def __post_init__(self) -> None:
        _require(self.n_grams)
        if self.max_matches < 0:
            raise ValueError(f"max_matches = {self.max_matches}: it must be 0 or more")
        if not isinstance(self.texts, ListFile):
            raise TypeError("texts must be a list")
        if len(self.texts.content) % _HASH.itemsize:
            raise ValueError("texts: the list is damaged")
        object.__setattr__(self, "_runs", np.frombuffer(self.texts.content, _HASH))

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `CONTAMINATED`."""
        words = split_words(document.text)
        hashes = run_hashes(words, self.n_grams)
        places = np.searchsorted(self._runs, hashes)
        known = places < len(self._runs)
        known[known] = self._runs[places[known]] == hashes[known]
        matches = int(known.sum())
        if matches <= self.max_matches:
            return document
        first = int(known.argmax())
        said = " ".join(words[first : first + self.n_grams])
        return Rejected(CONTAMINATED, f"{matches:,} runs of {self.n_grams} words, the first is {said!r}")

    @staticmethod
    def list_form(content: bytes, values: Mapping[str, Any], /) -> bytes:
        """Return the hashes of all runs of words, ascending. Raises ValueError: no UTF-8, or no text has as many."""
        size = values.get("n_grams", N_GRAMS)
        _require(size)
        found = [run_hashes(split_words(text), size) for text in _texts(content)]
        runs = np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)
        if not len(runs):
            raise ValueError(f"no text has {size} words: put one text on a line")
        return runs.astype(_HASH).tobytes()


def run_hashes(words: list[str], size: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each run of ``size`` words; shape ``[max(0, len(words) - size + 1)]``.

    With ``h`` the XXH3-64 of each word in UTF-8 and ``f`` a constant, a run that begins at
    word ``i`` has the sum of ``h[i + j] * f^j`` over its words, modulo 2^64.
    """
    count = len(words) - size + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    each = np.fromiter((xxhash.xxh3_64_intdigest(word.encode()) for word in words), np.uint64, len(words))
    total, factor = np.zeros(count, np.uint64), 1
    for place in range(size):
        total += each[place : place + count] * np.uint64(factor)
        factor = factor * _FACTOR % (1 << 64)
    return total


def _require(size: int) -> None:
    if not 1 <= size <= 100:  # noqa: PLR2004 - the time is that of so many words
        raise ValueError(f"n_grams = {size}: it must be from 1 to 100")


def _texts(content: bytes) -> Iterable[str]:
    """Yield each line; of one that is a JSON object, all strings in it."""
    for line in content.decode("utf-8-sig").split("\n"):
        waiting: list[Any] = [line]
        if line.lstrip().startswith("{"):
            with suppress(orjson.JSONDecodeError):
                waiting = [orjson.loads(line)]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                yield one
            elif isinstance(one, (list, dict)):
                waiting.extend(reversed(list(one.values() if isinstance(one, dict) else one)))
