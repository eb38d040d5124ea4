"""The rules by which spaCy's blank English pipeline cuts a chunk into words, as tables for a kernel.

spaCy applies regular expressions to the chunk's ends (prefixes, suffixes) and to what is left in the middle (infixes),
with a list of special cases. The expressions are few and look at one or two characters at a time, so each becomes a bit
in a table of all characters. `english_rules` checks that the installed spaCy has exactly these expressions.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import SettingsError

from .words import SYMBOLS

ALPHABETIC: Final = 1
"""`str.isalpha`."""
SYMBOL: Final = 2
"""One of `SYMBOLS`."""
PUNCTUATION: Final = 4
"""Unicode category P: spaCy's ``is_punct`` where all characters are."""
SENTENCE_END: Final = 8
"""One of the sentencizer's characters."""
PREFIX: Final = 16
SUFFIX: Final = 32
BEFORE_STOP: Final = 64
"""A full stop behind it is a suffix."""
UPPER: Final = 128
LOWER_OR_QUOTE: Final = 256
UPPER_OR_QUOTE: Final = 512
LETTER: Final = 1024
"""One of spaCy's ``ALPHA``."""
ICON: Final = 2048
"""An infix wherever it stands."""
IN_LABEL: Final = 4096
"""May stand within a label of a host name."""
AT_LABEL_END: Final = 8192
IN_TOP_LEVEL: Final = 16384
"""May stand in the last label of a host name."""
DIGIT: Final = 32768
"""``\\d`` of an expression."""

HASH_SEED: Final = 0xCBF29CE484222325
HASH_FACTOR: Final = 0x100000001B3
"""FNV-1a over code points (http://www.isthe.com/chongo/tech/comp/fnv/)."""
_MASK: Final = 2**64 - 1
_CHARACTERS: Final = 0x110000

KNOWN_RULES: Final = "3b070276bf3e6482b0d0ccbff90352272746e94226d145bd983372cbe52b197f"
"""SHA-256 of spaCy's expressions that the kernel was written for."""


class SpecialCases(NamedTuple):
    """The strings that spaCy cuts by a list."""

    slots: npt.NDArray[np.int32]
    """Their numbers, counted from 1, by hash."""
    begin: npt.NDArray[np.int32]
    """Shape ``[strings + 1]``: where each begins in ``text``."""
    text: npt.NDArray[np.int32]
    """Code points of all strings."""
    first: npt.NDArray[np.int32]
    """Shape ``[strings + 1]``: where each string's words begin in ``ends``."""
    ends: npt.NDArray[np.int32]
    """Where each word ends in its string."""
    longest: int
    ends_of_sizes: npt.NDArray[np.uint64]
    """Shape ``[2 ** 14]``: the sizes of strings with such a first and last character (`ends_of`), a bit for each."""


class EnglishRules(NamedTuple):
    """Tables of the kernel that cuts chunks; sets are hash tables of `string_hash`, with 0 where a place is free.

    What a kernel calls often gets the one table that it needs: passing all of them takes longer than most of it does.
    """

    classes: npt.NDArray[np.uint16]
    """Shape ``[0x110000]``: the bits above of each character."""
    special: SpecialCases
    units: npt.NDArray[np.uint64]
    """Units and currencies, which are suffixes behind a digit."""
    patterns: npt.NDArray[np.uint64]
    """Sequences of words that spaCy may put together again: `sequence_hash` of each."""
    beginnings: npt.NDArray[np.uint64]
    """`sequence_hash` of what such sequences begin with, one word or more, but not all."""
    pairs: npt.NDArray[np.uint64]
    """`sequence_hash` of two words that follow each other in such a sequence."""
    longest_sequence: int
    """In words."""
    longest_unit: int


def ends_of(first: int, last: int) -> int:
    """Return seven bits of each of two code points."""
    return (first & 127) << 7 | (last & 127)


def string_hash(text: str) -> int:
    """Return the hash of a string's code points."""
    value = HASH_SEED
    for character in text:
        value = ((value ^ ord(character)) * HASH_FACTOR) & _MASK
    return value or 1


def sequence_hash(words: Iterable[str]) -> int:
    """Return the hash of a sequence of words."""
    value = HASH_SEED
    for word in words:
        value = ((value ^ string_hash(word)) * HASH_FACTOR) & _MASK
    return value or 1


def special_sequences(tokenizer: Any) -> dict[str, tuple[str, ...]]:
    """Return the special cases that spaCy looks for in what it has cut, each with the words that it looks for.

    They are those with an affix (`spacy.tokenizer.Tokenizer.add_special_case`).
    """
    plain = type(tokenizer)(
        tokenizer.vocab,
        prefix_search=tokenizer.prefix_search,
        suffix_search=tokenizer.suffix_search,
        infix_finditer=tokenizer.infix_finditer,
        token_match=tokenizer.token_match,
        url_match=tokenizer.url_match,
    )
    found = {}
    for text in tokenizer.rules:
        affixes = tokenizer.find_prefix(text) or tokenizer.find_infix(text) or tokenizer.find_suffix(text)
        if affixes or " " in text:
            found[text] = tuple(token.text for token in plain(text))
    return found


@lru_cache(maxsize=1)
def _classes() -> npt.NDArray[np.uint16]:
    from spacy.lang import char_classes  # noqa: PLC0415 - comes with an extra

    icons = f"[{char_classes.CONCAT_ICONS}]"
    marks = [*char_classes.LIST_PUNCT, *char_classes.LIST_QUOTES]
    before_stop = rf"[0-9{char_classes.ALPHA_LOWER}%²\-\+{char_classes.PUNCT}(?:{char_classes.CONCAT_QUOTES})]"
    everything = "".join(map(chr, range(_CHARACTERS)))
    table = np.zeros(_CHARACTERS, np.uint16)

    def put(bit: int, expression: str) -> None:
        for match in re.finditer(f"(?:{expression})+", everything):
            table[match.start() : match.end()] |= bit

    singles = [mark for mark in marks if mark.strip() and len(mark.removeprefix("\\")) == 1]
    currencies = [mark for mark in char_classes.LIST_CURRENCY if len(mark.removeprefix("\\")) == 1]
    put(PREFIX, "|".join(["§", "%", "=", "—", "\u2013", *singles, *currencies, icons]))
    put(SUFFIX, "|".join([*singles, icons, "—", "\u2013"]))
    put(BEFORE_STOP, before_stop)
    put(UPPER, f"[{char_classes.ALPHA_UPPER}]")
    put(LOWER_OR_QUOTE, f"[{char_classes.ALPHA_LOWER}{char_classes.CONCAT_QUOTES}]")
    put(UPPER_OR_QUOTE, f"[{char_classes.ALPHA_UPPER}{char_classes.CONCAT_QUOTES}]")
    put(LETTER, f"[{char_classes.ALPHA}]")
    put(ICON, f"…|{icons}")
    put(IN_LABEL, r"[A-Za-z0-9\u00a1-\uffff_-]")
    put(AT_LABEL_END, r"[A-Za-z0-9\u00a1-\uffff]")
    put(IN_TOP_LEVEL, f"[{char_classes.ALPHA_LOWER}]")
    for number, character in enumerate(everything):
        if character.isdecimal():
            table[number] |= DIGIT
        elif character.isalpha():
            table[number] |= ALPHABETIC
        elif unicodedata.category(character).startswith("P"):
            table[number] |= PUNCTUATION
    table[[ord(character) for character in SYMBOLS]] |= SYMBOL
    return table


def english_rules(nlp: Any, sequences: Collection[tuple[str, ...]]) -> EnglishRules:
    """Return the tables of a blank English pipeline with a sentencizer; ``sequences`` are its `special_sequences`.

    Raises SettingsError where spaCy's expressions are others than those that the kernel knows.
    """
    tokenizer = nlp.tokenizer
    expressions = [tokenizer.prefix_search, tokenizer.suffix_search, tokenizer.infix_finditer, tokenizer.url_match]
    known = [expression.__self__.pattern for expression in expressions]
    found = sha256("\n".join(known).encode()).hexdigest()
    if found != KNOWN_RULES or tokenizer.token_match is not None:
        raise SettingsError(f"this spaCy cuts English words by other expressions ({found})")
    from spacy.lang import char_classes  # noqa: PLC0415 - comes with an extra

    classes = _classes().copy()
    classes[[ord(mark) for mark in nlp.get_pipe("sentencizer").punct_chars]] |= SENTENCE_END
    if any(" " in text.strip() for text in tokenizer.rules):
        raise SettingsError("this spaCy cuts English words in another way (a special case has a space)")
    unescaped = [mark.replace("\\", "") for mark in char_classes.LIST_CURRENCY]
    units = [*char_classes.UNITS.split("|"), *unescaped]
    slots, begin, text, first, ends = _special_cases(tokenizer.rules)
    sizes = np.zeros(1 << 14, np.uint64)
    for case in tokenizer.rules:
        sizes[ends_of(ord(case[0]), ord(case[-1]))] |= np.uint64(1 << min(len(case), 63))
    return EnglishRules(
        classes=classes,
        special=SpecialCases(slots, begin, text, first, ends, max(map(len, tokenizer.rules)), sizes),
        units=_hash_set(map(string_hash, units)),
        patterns=_hash_set(map(sequence_hash, sequences)),
        beginnings=_hash_set(sequence_hash(words[:end]) for words in sequences for end in range(1, len(words))),
        pairs=_hash_set(sequence_hash(pair) for words in sequences for pair in pairwise(words)),
        longest_sequence=max(map(len, sequences)),
        longest_unit=max(map(len, units)),
    )


def _special_cases(rules: Mapping[str, list[dict[int, str]]]) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the five tables of special cases."""
    from spacy.attrs import ORTH  # noqa: PLC0415 - comes with an extra

    cases = {text: [case[ORTH] for case in words] for text, words in rules.items()}
    slots = np.zeros(_slots(len(cases)), np.int32)
    for number, text in enumerate(cases):
        slots[_free_slot(slots, string_hash(text))] = number + 1
    yield slots
    yield np.cumsum([0, *map(len, cases)], dtype=np.int32)
    yield np.array([ord(character) for text in cases for character in text], np.int32)
    yield np.cumsum([0, *map(len, cases.values())], dtype=np.int32)
    yield np.concatenate([np.cumsum([len(word) for word in words], dtype=np.int32) for words in cases.values()])


def _hash_set(hashes: Iterable[int]) -> npt.NDArray[np.uint64]:
    members = set(hashes)
    table = np.zeros(_slots(len(members)), np.uint64)
    for value in members:
        table[_free_slot(table, value)] = value
    return table


def _slots(members: int) -> int:
    """Return the size of an open-addressing table: a power of two, of which at most a quarter is taken."""
    return 1 << (4 * members).bit_length()


def _free_slot(table: npt.NDArray[Any], value: int) -> int:
    """Return where a hash goes in an open-addressing table."""
    at = value & (len(table) - 1)
    while table[at]:
        at = (at + 1) & (len(table) - 1)
    return at
