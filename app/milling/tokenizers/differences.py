"""Looking for texts on which two engines differ: mutated texts and texts that are hard on purpose, then shrunk."""

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from .protocol import Encoder

BATCH: Final = 256
"""Texts given to both engines at once."""
LONGEST_WORD: Final = 20_000
"""Characters; engines take other paths for words that no cache holds, and slow ones need a second for a longer one."""
EXCERPT: Final = 2_000
"""Characters taken from a given text at once."""
WHITE_SPACE: Final = (
    " ",
    "  ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u00a0",
    "\u1680",
    "\u2003",
)
"""And what is white space for some and not for others, below."""
ODD: Final = (
    *("\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u202e", "\x00", "\x1b", "\x7f"),
    *(
        "'s",
        "'S",
        "'ll",
        "'LL",
        "'\u017f",
        "\u2019s",
        "don't",
        "I'M",
        "'re've",
    ),  # contractions, and what only seems one
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
    makers = (_excerpt, _mutation, _mutation, _characters, _white_space, _odd, _long_word)
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
        new = rng.choice((rng.choice(WHITE_SPACE), rng.choice(ODD), rng.choice(names or ODD), _character(rng)))
        characters[at : at + rng.randrange(3)] = [new]
    return "".join(characters)


def _characters(rng: random.Random, _texts: Sequence[str], _names: Sequence[str]) -> str:
    return "".join(_character(rng) for _ in range(rng.randrange(60)))


def _white_space(rng: random.Random, _texts: Sequence[str], _names: Sequence[str]) -> str:
    parts = (
        rng.choice((*WHITE_SPACE, "a", "B.", "1", "\u00e9")) * rng.randrange(1, 6) for _ in range(rng.randrange(20))
    )
    return "".join(parts)


def _odd(rng: random.Random, _texts: Sequence[str], names: Sequence[str]) -> str:
    return "".join(rng.choice((*ODD, *WHITE_SPACE, *names[:50])) for _ in range(rng.randrange(40)))


def _long_word(rng: random.Random, texts: Sequence[str], names: Sequence[str]) -> str:
    if rng.randrange(8):
        return rng.choice(ODD) * rng.randrange(200)
    alphabet = "".join(_excerpt(rng, texts, names).split()) or "ab"
    return "".join(rng.choices(alphabet, k=rng.randrange(LONGEST_WORD)))


def _character(rng: random.Random) -> str:
    groups = _categories()
    return rng.choice(groups[rng.randrange(len(groups))])


@cache
def _categories() -> list[list[str]]:
    """Return the characters of each Unicode category as this Python knows them, but no surrogates."""
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
            if _differ(engine, reference, shorter):
                text = shorter
            else:
                at += size
        size = min(size // 2, len(text))
    return TextDifference(text, engine.encode([text]).ids.tolist(), reference.encode([text]).ids.tolist())


def _differ(engine: Encoder, reference: Encoder, text: str) -> bool:
    return not np.array_equal(engine.encode([text]).ids, reference.encode([text]).ids)
