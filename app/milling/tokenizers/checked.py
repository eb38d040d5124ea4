"""A fast engine that must agree with `tokenizers`: before it is used, and later on a sample of what it encodes."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenmill.errors import EngineError, SettingsError

from .hugging_face import HuggingFace
from .probe import PROBE
from .protocol import Encoder, TokenBatch
from .spelling import Spelled

SAMPLE_ONE_IN: Final = 8192
"""One text in this many is compared. `tokenizers` is a hundred times slower than the fast engine, which takes a third
of a worker's time, so comparing costs some 0.5 % of that time."""
SAMPLE_CHARACTERS: Final = 1 << 16
"""Of a longer text, only a beginning of this length is compared, encoded by itself: no text stalls the worker."""
_LOOKED_AT: Final = 8
"""Tokens of a text that decide whether it is compared, spread over all of it: similar texts differ in some of them."""
_FACTORS: Final = np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 2 * _LOOKED_AT, 2, dtype=np.uint64)
"""Odd multiples of 2**64 over the golden ratio."""
_SHOWN_CHARACTERS: Final = 40
_TRIAL_TOKENS: Final = 256
"""Added tokens whose names are tried out, the first ones: some files have thousands of the same shape."""


class Checked:
    """The engine ``kind``: the ids of ``fast``, checked by ``reference``, which answers everything else.

    Which texts are compared depends on their content alone, so every worker that meets a text compares it or none does,
    and a stopped partition stops again at the same place.
    """

    def __init__(self, kind: str, fast: Encoder, reference: HuggingFace) -> None:
        """Compare the engines on the probe text and on the names of all added tokens.

        Raises:
            SettingsError: they differ.

        """
        self._kind = kind
        self._fast = Spelled(fast, reference)
        self._reference = reference
        try:
            for text in (*PROBE, *_trials(reference)):  # one by one, so that none hides behind another
                self._compare(text, self._fast.encode([text])[0])
        except EngineError as error:
            raise SettingsError(f"{kind} does not give the ids of tokenizers: {error}") from error
        if self._fast.failures:
            raise SettingsError(f"{kind} fails on texts that every engine has to encode")

    @property
    def kind(self) -> str:
        """The fast engine's name."""
        return self._kind

    @property
    def reference(self) -> HuggingFace:
        """The engine that checks the fast one."""
        return self._reference

    @property
    def vocabulary_size(self) -> int:
        """The largest id plus one, added tokens included."""
        return self._reference.vocabulary_size

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``; see `milling.tokenizers.Engine`.

        Raises:
            EngineError: a text of the sample has other ids by `tokenizers`; none of the batch should be used.

        """
        batch = self._fast.encode(texts)
        for number in sampled(batch):
            text, ids = texts[number], batch[number]
            if len(text) > SAMPLE_CHARACTERS:
                text = text[:SAMPLE_CHARACTERS]
                ids = self._fast.encode([text])[0]
            self._compare(text, ids)
        return batch

    def decode(self, ids: Sequence[int]) -> str:
        """Return text for people, special tokens included."""
        return self._reference.decode(ids)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, added or not; None where there is none of this name."""
        return self._reference.token_id(token)

    def _compare(self, text: str, ids: npt.NDArray[np.uint32]) -> None:
        """Raise `EngineError` if these are not the reference's ids."""
        answer = self._reference.encode([text])
        if answer.failed and len(ids):
            raise EngineError(f"tokenizers fails on a text that {self._kind} encodes ({answer.failed[0].detail})")
        right = answer[0]
        at = first_difference(ids, right)
        if at is not None:
            raise EngineError(self._explain(text, ids, right, at))

    def _explain(self, text: str, fast: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32], at: int) -> str:
        where = len(self._reference.decode(right[:at].tolist()))
        return (
            f"token {at} of a text is {_shown(fast, at)} by {self._kind} and {_shown(right, at)} by tokenizers, "
            f"about here: {text[max(0, where - _SHOWN_CHARACTERS // 2) : where + _SHOWN_CHARACTERS]!a}"
        )


def sampled(batch: TokenBatch) -> list[int]:
    """Return the indices of the texts that `Checked` compares: one in `SAMPLE_ONE_IN`.

    The choice is a hash of how many tokens a text has and of `_LOOKED_AT` of them, from the first to the last: the same
    for everyone who encodes the text, and no work in Python for each text. (Each token is multiplied by a number of its
    place's own; the sum goes through the finalizer of splitmix64, https://prng.di.unimi.it/splitmix64.c.)
    """
    lengths = np.diff(batch.offsets)
    numbers = np.flatnonzero(lengths)
    starts, lengths = batch.offsets[numbers], lengths[numbers]
    key = lengths.astype(np.uint64)
    for at in range(_LOOKED_AT):
        key += batch.ids[starts + (lengths - 1) * at // (_LOOKED_AT - 1)] * _FACTORS[at]
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    key ^= key >> np.uint64(31)
    chosen: list[int] = numbers[key % np.uint64(SAMPLE_ONE_IN) == 0].tolist()
    return chosen


def first_difference(one: npt.NDArray[np.uint32], other: npt.NDArray[np.uint32]) -> int | None:
    """Return the index of the first token in which two texts' ids differ; None if they are equal."""
    if np.array_equal(one, other):
        return None
    common = min(len(one), len(other))
    return int(np.argmax(np.append(one[:common] != other[:common], [True])))


def _shown(ids: npt.NDArray[np.uint32], at: int) -> str:
    return str(ids[at]) if at < len(ids) else "missing"


def _trials(reference: HuggingFace) -> list[str]:
    """Return texts with the names of added tokens in them, at their ends, and with the names slightly changed."""
    names = reference.added_tokens[:_TRIAL_TOKENS]
    return [text for name in names for text in (name, f" a {name} b{name}{name}\n{name[:-1]} {name.swapcase()}x{name}")]
