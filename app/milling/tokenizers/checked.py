"""A fast engine that must agree with `tokenizers`: before it is used, and later on a sample of what it encodes.

Some texts are known to be got wrong now and then; the reference encodes these. `differences` looks for more: mutated
texts and texts that are hard on purpose, then shrunk.
"""

import logging
import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenmill.errors import EngineError, RecordError, SettingsError

from ..foreign_code import shown_error
from . import older_library
from .hugging_face import HuggingFace
from .protocol import PROBE, Encoder, TokenBatch, batch_of, joined

_NEW_RANGES: Final = (
    *((0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC), (0x1ACF, 0x1ADD), (0x1AE0, 0x1AEB)),
    *((0xA7CE, 0xA7CF), (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4), (0xA7F1, 0xA7F1)),
    *((0x10940, 0x10959), (0x10EC5, 0x10EC7), (0x10EFA, 0x10EFB), (0x11B60, 0x11B67), (0x11DB0, 0x11DDB)),
    *((0x11DE0, 0x11DE9), (0x16EA0, 0x16EB8), (0x16EBB, 0x16ED3), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF)),
    *((0x18D09, 0x18D1E), (0x18D80, 0x18DF2), (0x1E6C0, 0x1E6DE), (0x1E6E0, 0x1E6F5), (0x1E6FE, 0x1E6FF)),
    *((0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479)),
)
"""Letters, digits and marks since Unicode 17 (September 2025; DerivedAge.txt): libraries with older tables divide words
differently there."""
_NEW: Final = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _NEW_RANGES)}]")
_BEGINNINGS: Final = sorted(
    {chr(code).encode()[:2] for first, last in _NEW_RANGES for code in (*range(first, last, 64), last)}
)
"""How all of them begin in UTF-8, where 64 code points differ in the last byte only, and few others do."""
_FIRST_BYTES: Final = sorted({beginning[0] for beginning in _BEGINNINGS})
"""Bytes are found many times faster than anything else, and most texts have none of these."""
_BEGINNING: Final = re.compile(b"|".join(map(re.escape, _BEGINNINGS)))

LONG_RUN: Final = 2 << 20
"""Characters without a change between white space and others. Within longer runs the reference may fail where a fast
encoder does not: its library gives up a match after 10,000,000 steps back, and the patterns that fast encoders know
take up to two for each character (``\\s*[\\r\\n]+`` over spaces), and two runs at most."""
_RUNS: Final = re.compile(r"\s+|\S+")

log = logging.getLogger(__name__)


class Spelled:
    """A fast encoder; where it may be wrong, or fails, ``reference`` encodes the text.

    It may be wrong about letters that are new in Unicode; about texts so uniform that the reference fails on them;
    about the names of added tokens next to characters that a normalizer changes; and about special tokens, whose names
    are text: a model that has them in its own vocabulary, like other words, may find them by itself, and the reference
    spells them out.
    """

    def __init__(self, fast: Encoder, reference: HuggingFace) -> None:
        self._fast = fast
        self._reference = reference
        self._may_find_special = reference.may_find_special
        self._names = reference.found_tokens if reference.normalizes else []
        self.failures = 0
        """On how many texts the fast encoder failed so far."""

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``; see `milling.tokenizers.Engine`."""
        batch, doubtful = self._tried(texts)
        doubtful += [number for number, text in enumerate(texts) if self._is_doubtful(text)]
        if self._may_find_special and self._reference.is_special(batch.ids):
            doubtful += [number for number, ids in enumerate(batch) if self._reference.is_special(ids)]
        if not doubtful:
            return batch
        parts, failed = list(batch), dict[int, RecordError]()
        for number in doubtful:
            answer = self._reference.encode([texts[number]])
            parts[number] = answer[0]
            if answer.failed:
                failed[number] = answer.failed[0]
        return batch_of(parts, failed)

    def _tried(self, texts: Sequence[str]) -> tuple[TokenBatch, list[int]]:
        """Return the fast encoder's ids, and the texts on which it fails by themselves; these have none."""
        try:
            return self._fast.encode(texts), []
        except MemoryError:
            raise  # says nothing about the text: the worker ends, and another one tries again
        except Exception as error:  # noqa: BLE001 - whatever it raises, the reference has the right answer
            if len(texts) == 1:
                self.failures += 1
                log.warning("a fast engine fails on a text, which tokenizers encodes instead: %s", shown_error(error))
                return batch_of([np.empty(0, np.uint32)]), [0]
        answers = [self._tried([text]) for text in texts]
        return joined([batch for batch, _ in answers]), [number for number, (_, failed) in enumerate(answers) if failed]

    def _is_doubtful(self, text: str) -> bool:
        if len(text) > LONG_RUN and any(run.end() - run.start() > LONG_RUN for run in _RUNS.finditer(text)):
            return True
        return not text.isascii() and (has_new_characters(text) or any(name in text for name in self._names))


def has_new_characters(text: str) -> bool:
    """Whether libraries of different age may see other kinds of characters in the text: since Unicode 17."""
    data = text.encode()
    return any(first in data for first in _FIRST_BYTES) and bool(_BEGINNING.search(data) and _NEW.search(text))


SAMPLE_ONE_IN: Final = older_library.SAMPLE_ONE_IN if older_library.INSTALLED else 1024
"""One text in this many is compared, by a power of two: who compares fewer compares none that others do not. Texts of
200 bytes cost 3 % of the engine's time so, which is 1 % of a worker's; longer ones cost less."""
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
        """Compare the engines on the probe and the names of added tokens. Raises SettingsError where they differ."""
        self.kind = kind
        self.reference = reference
        self.vocabulary_size = reference.vocabulary_size
        self.decode, self.token_id = reference.decode, reference.token_id
        self._fast = Spelled(fast, reference)
        names = reference.added_tokens[:_TRIAL_TOKENS]
        trials = ((name, f" a {name} b{name}{name}\n{name[:-1]} {name.swapcase()}x{name}") for name in names)
        try:
            for text in (*PROBE, *chain.from_iterable(trials)):  # one by one, so that none hides behind another
                self._compare(text, self._fast.encode([text])[0])
        except EngineError as error:
            raise SettingsError(f"{kind} does not give the ids of tokenizers: {error}") from error
        if self._fast.failures:
            raise SettingsError(f"{kind} fails on texts that every engine has to encode")

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``. Raises EngineError where one of the sample has others by `tokenizers`."""
        batch = self._fast.encode(texts)
        for number in sampled(batch):
            text, ids = texts[number], batch[number]
            if len(text) > SAMPLE_CHARACTERS:
                text = text[:SAMPLE_CHARACTERS]
                ids = self._fast.encode([text])[0]
            self._compare(text, ids)
        return batch

    def _compare(self, text: str, ids: npt.NDArray[np.uint32]) -> None:
        answer = self.reference.encode([text])
        if answer.failed and len(ids):
            raise EngineError(f"tokenizers fails on a text that {self.kind} encodes ({answer.failed[0].detail})")
        right = answer[0]
        at = first_difference(ids, right)
        if at is not None:
            where = len(self.reference.decode(right[:at].tolist()))
            raise EngineError(
                f"token {at} of a text is {_shown(ids, at)} by {self.kind} and {_shown(right, at)} by tokenizers, "
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


BATCH: Final = 256
"""Texts given to both engines at once."""
LONGEST_WORD: Final = 20_000
"""Characters; engines take other paths for words that no cache holds, and slow ones need a second for a longer one."""
EXCERPT: Final = 2_000
"""Characters taken from a given text at once."""
WHITE_SPACE: Final = (
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u00a0", "\u1680", "\u2003"),
)
"""And what is white space for some and not for others, below."""
ODD: Final = (
    *("\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u202e", "\x00", "\x1b", "\x7f"),
    *("'s", "'S", "'ll", "'LL", "'\u017f", "\u2019s", "don't", "I'M", "'re've"),  # contractions, or what only seems one
    *("1234567", "1,234.5", "\u0661\u0662\u0663", "\u00b2", "\u00bd", "\u2168", "0x7f"),
    *("\u00e9", "e\u0301", "\u212b", "\ufb01", "\uff21", "\u017f", "\u212a", "\u0130", "\u00df", "\u1e9e", "\u01c5"),
    *("\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2615\ufe0f", "\u4e2d\u6587", "\uac00"),
    *("\u0e44\u0e17\u0e22", "\u0939\u093f\u0928", "\u0301\u0323\u0301", "\u1100\u1161\u11a8", "\U00016d67"),
    *("__init__", "camelCaseHTTP", "==", "!!!", "//\n", "/\r\n", "\u2581", "\u0120", "##", "<0x0A>", "\ufffd"),
)
"""Digits, case and accents of several kinds, composed and not, emoji, scripts, and what vocabularies use as marks."""


@dataclass(frozen=True, slots=True)
class TextDifference:
    """A text, as short as it could be made, that two engines encode differently."""

    text: str
    ids: Sequence[int]
    """The ids by the engine under test."""
    right: Sequence[int]
    """By the reference."""


def find_differences(
    engine: Encoder, reference: Encoder, texts: Sequence[str], names: Sequence[str], until: Callable[[int], bool]
) -> Iterator[TextDifference]:
    """Yield texts on which the engines differ, shrunk, until ``until`` says so; it is given the number of texts tried.

    The texts are the given ones, pieces and mutations of them with ``names`` (of added tokens) put in, characters of
    all Unicode categories, runs of white space, and very long words. The same arguments try the same texts in the same
    order.
    """
    tried = 0
    for batch in _batches(texts, names):
        if until(tried):
            return
        ids, right = engine.encode(batch), reference.encode(batch)
        tried += len(batch)
        if np.array_equal(ids.offsets, right.offsets) and np.array_equal(ids.ids, right.ids):
            continue
        for number, text in enumerate(batch):
            if not np.array_equal(ids[number], right[number]):
                yield _shrunk(engine, reference, text)


def _batches(texts: Sequence[str], names: Sequence[str]) -> Iterator[list[str]]:
    yield from ([text] for text in texts)
    rng = random.Random(0)  # noqa: S311 - repeatable choices, no secrets
    makers = (_excerpt, _mutation, _mutation, _row, _row, _long_word)
    while True:
        yield [rng.choice(makers)(rng, texts, names) for _ in range(BATCH)]


def _excerpt(rng: random.Random, texts: Sequence[str], _names: Sequence[str]) -> str:
    text = rng.choice(texts) if texts else ""
    start = rng.randrange(len(text) + 1)
    return text[start : start + rng.randrange(EXCERPT)]


def _mutation(rng: random.Random, texts: Sequence[str], names: Sequence[str]) -> str:
    characters = list(_excerpt(rng, texts, names))
    for _ in range(rng.randrange(1, 20)):
        at = rng.randrange(len(characters) + 1)
        characters[at : at + rng.randrange(3)] = [_part(rng, names)]
    return "".join(characters)


def _row(rng: random.Random, _texts: Sequence[str], names: Sequence[str]) -> str:
    return "".join(_part(rng, names) * rng.choice((1, 1, 1, 2, 5)) for _ in range(rng.randrange(50)))


def _part(rng: random.Random, names: Sequence[str]) -> str:
    groups = _categories()
    return rng.choice(rng.choice((WHITE_SPACE, WHITE_SPACE, ODD, names or ODD, groups[rng.randrange(len(groups))])))


def _long_word(rng: random.Random, texts: Sequence[str], names: Sequence[str]) -> str:
    if rng.randrange(8):
        return rng.choice(ODD) * rng.randrange(200)
    alphabet = "".join(_excerpt(rng, texts, names).split()) or "ab"
    return "".join(rng.choices(alphabet, k=rng.randrange(LONGEST_WORD)))


@cache
def _categories() -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for number in range(0x110000):
        category = unicodedata.category(chr(number))
        if category != "Cs":
            groups.setdefault(category, []).append(chr(number))
    return list(groups.values())


def _shrunk(engine: Encoder, reference: Encoder, text: str) -> TextDifference:
    """Leave out what can be left out, large parts first (Zeller and Hildebrandt's ddmin, in short)."""
    size = len(text) // 2
    while size:
        at = 0
        while at < len(text):
            shorter = text[:at] + text[at + size :]
            if not np.array_equal(engine.encode([shorter]).ids, reference.encode([shorter]).ids):
                text = shorter
            else:
                at += size
        size = min(size // 2, len(text))
    return TextDifference(text, engine.encode([text]).ids.tolist(), reference.encode([text]).ids.tolist())
