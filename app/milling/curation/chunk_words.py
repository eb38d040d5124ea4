"""Cutting one chunk (characters between white space) into words, as spaCy's blank English tokenizer does: a kernel.

spaCy applies regular expressions to the chunk's ends (prefixes, suffixes) and to what is left in the middle (infixes),
with a list of special cases. The expressions are few and look at one or two characters at a time, so each becomes a bit
in a table of all characters. `english_rules` checks that the installed spaCy has exactly these expressions.

The kernel's loop is that of ``Tokenizer._split_affixes`` and ``_attach_tokens`` (spaCy 3.8, ``tokenizer.pyx``) over
indices instead of copies of the rest, so a chunk takes a time in proportion to its length. What hangs on one of spaCy's
lists of special cases, and addresses with ``@``, are left to spaCy.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import SettingsError

from .compiled import compiled
from .words import SYMBOLS

ALPHABETIC, SYMBOL, PUNCTUATION, SENTENCE_END, PREFIX, SUFFIX, BEFORE_STOP, UPPER = (1 << bit for bit in range(8))
LOWER_OR_QUOTE, UPPER_OR_QUOTE, LETTER, ICON, IN_LABEL, AT_LABEL_END, IN_TOP_LEVEL, DIGIT = (
    1 << bit for bit in range(8, 16)
)
"""Bits of a character: `str.isalpha`; one of `SYMBOLS`; Unicode category P, as spaCy's ``is_punct`` has it for all of a
word; one of the sentencizer's characters. Then classes of spaCy's expressions: ``BEFORE_STOP`` makes a full stop behind
it a suffix, ``LETTER`` is its ``ALPHA``, an ``ICON`` is an infix wherever it stands, ``IN_LABEL`` may stand within a
label of a host name, ``AT_LABEL_END`` at its ends, ``IN_TOP_LEVEL`` in the last one; ``DIGIT`` is ``\\d``."""

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
    """Return the special cases that spaCy looks for in what it has cut, those with an affix, each with its words."""
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
    """Return the tables of a pipeline. Raises SettingsError where its expressions are others than the kernel knows."""
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
    from spacy.attrs import ORTH  # noqa: PLC0415 - comes with an extra

    cases = {text: [case[ORTH] for case in words] for text, words in rules.items()}
    yield hash_slots([string_hash(text) for text in cases])
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


def hash_slots(hashes: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return the numbers of these hashes, counted from 1, in an open-addressing table."""
    slots = np.zeros(_slots(len(hashes)), np.int32)
    for number, value in enumerate(hashes, 1):
        slots[_free_slot(slots, value)] = number
    return slots


def _slots(members: int) -> int:
    """Return the size of an open-addressing table: a power of two, of which at most a quarter is taken."""
    return 1 << (4 * members).bit_length()


def _free_slot(table: npt.NDArray[Any], value: int) -> int:
    at = value & (len(table) - 1)
    while table[at]:
        at = (at + 1) & (len(table) - 1)
    return at


LEFT_TO_SPACY: Final = -1
"""The answer where a kernel does not know how spaCy cuts a chunk."""
HASH_START, HASH_STEP = np.uint64(HASH_SEED), np.uint64(HASH_FACTOR)

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


_DOT, _PLUS, _HYPHEN, _COLON, _SLASH, _AT, _QUESTION, _NUMBER_SIGN, _UNDERSCORE = map(ord, ".+-:/@?#_")
_LABEL: Final = 64
"""Most characters of a label of a host name, as spaCy's expression has it."""
_TOP_LEVEL: Final = (2, 63)
_PORT: Final = (2, 5)


@compiled
def is_address(classes: Classes, text: Characters, low: int, high: int) -> int:
    """Return whether ``text[low:high]`` is an address by spaCy's expression: 1, 0, or `LEFT_TO_SPACY`."""
    dot = False
    for at in range(low, high):
        dot |= text[at] == _DOT
    if not dot:
        return 0
    answer = _from_host(classes, text, low, high)  # at the beginning, behind a scheme, or behind any ``@``
    at = low
    while at < high and (text[at] in (_PLUS, _HYPHEN, _DOT, _UNDERSCORE) or _is_ascii_alphanumeric(text[at])):
        at += 1
    if at + 2 < high and text[at + 1] == _SLASH and text[at + 2] == _SLASH:
        if text[at] != _COLON:
            pass
        elif at - low > 1 and answer != 1:
            answer = _or_left(answer, _from_host(classes, text, at + 3, high))
    elif at < high and text[at] >= 128 and answer == 0:
        for colon in range(at, high - 2):
            if text[colon] == _COLON and text[colon + 1] == _SLASH and text[colon + 2] == _SLASH:
                return LEFT_TO_SPACY
    for at in range(low + 1, high):
        if text[at] == _AT and answer != 1:
            answer = _or_left(answer, _from_host(classes, text, at + 1, high))
    return answer


@compiled
def _or_left(one: int, other: int) -> int:
    return other if one == 0 or other == 1 else one


@compiled
def _from_host(classes: Classes, text: Characters, low: int, high: int) -> int:
    end, dots, digits = low, 0, True
    while end < high and (text[end] == _DOT or classes[text[end]] & (IN_LABEL | IN_TOP_LEVEL)):
        dots += text[end] == _DOT
        digits &= text[end] == _DOT or is_digit(text[end])
        end += 1
    if not _is_end_of_host(text, end, high):
        if end < high and text[end] == _COLON:
            for at in range(end, min(end + 1 + _PORT[1], high)):
                if text[at] >= 128:
                    return LEFT_TO_SPACY
        return 0
    if digits:
        return LEFT_TO_SPACY if dots == 3 else 0
    return _is_host(classes, text, low, end)


@compiled
def _is_ascii_alphanumeric(character: int) -> bool:
    return is_digit(character) or 65 <= character <= 90 or 97 <= character <= 122


@compiled
def _is_end_of_host(text: Characters, end: int, high: int) -> bool:
    """Return whether an address may have its host up to ``end``: a port, a path or nothing follows."""
    if end < high and text[end] == _COLON:
        end += 1
        begin = end
        while end < high and is_digit(text[end]):
            end += 1
        if not _PORT[0] <= end - begin <= _PORT[1]:
            return False
    return end == high or text[end] in (_SLASH, _QUESTION, _NUMBER_SIGN)


@compiled
def _is_host(classes: Classes, text: Characters, low: int, high: int) -> int:
    begin = low
    for at in range(low, high):
        if text[at] != _DOT:
            continue
        if not 1 <= at - begin <= _LABEL:
            return 0
        if not (classes[text[begin]] & AT_LABEL_END and classes[text[at - 1]] & AT_LABEL_END):
            return 0
        for inside in range(begin, at):
            if not classes[text[inside]] & IN_LABEL:
                return 0
        begin = at + 1
    if begin == low or not _TOP_LEVEL[0] <= high - begin <= _TOP_LEVEL[1]:
        return 0
    for inside in range(begin, high):
        if not classes[text[inside]] & IN_TOP_LEVEL:
            return 0
    return 1


NOTHING_TO_JOIN: Final = -2
_ends_of: Final = compiled(ends_of)
_COMMA, _DOLLAR = map(ord, ",$")
_ELLIPSIS, _DEGREE, _LONG_DASH, _SHORT_DASH, _TILDE = map(ord, "…°—–~")  # noqa: RUF001 - as spaCy has them
_APOSTROPHE, _CURLY, _SMALL_S, _BIG_S = map(ord, "'’sS")  # noqa: RUF001 - as spaCy has them
_BIG_U, _BIG_C, _BIG_A = map(ord, "UCA")
_STAR, _CARET, _LESS, _MORE, _EQUAL = map(ord, "*^<>=")
_SEEN: Final = 1 << 16
_KEPT: Final = 20
"""From this bit on: the length of the sequence that is put together here."""


@compiled
def special_case(cases: SpecialCases, text: Characters, low: int, high: int) -> int:
    """Return the number of ``text[low:high]`` among the special cases; -1 if it is none."""
    size = high - low
    if size <= 0 or size > cases.longest:
        return -1
    if not (cases.ends_of_sizes[_ends_of(text[low], text[high - 1])] >> np.uint64(min(size, 63))) & np.uint64(1):
        return -1
    mask = np.uint64(len(cases.slots) - 1)
    slot = hash_of(text, low, high) & mask
    while cases.slots[slot]:
        number = cases.slots[slot] - 1
        begin = cases.begin[number]
        if cases.begin[number + 1] - begin == size:
            same = 0
            while same < size and cases.text[begin + same] == text[low + same]:
                same += 1
            if same == size:
                return number
        slot = (slot + np.uint64(1)) & mask
    return -1


@compiled
def _put_special(cases: SpecialCases, number: int, low: int, ends: Characters, words: int) -> int:
    """Put the words of a special case that begins at ``low`` behind ``words`` others; return how many there are."""
    for at in range(cases.first[number], cases.first[number + 1]):
        ends[words] = low + cases.ends[at]
        words += 1
    return words


@compiled
def _prefix(classes: Classes, text: Characters, low: int, high: int) -> int:
    first = text[low]
    if classes[first] & PREFIX:
        return 1
    if first == _PLUS:
        return 0 if low + 1 < high and is_digit(text[low + 1]) else 1
    if first == _DOT:
        end = low + 1
        while end < high and text[end] == _DOT:
            end += 1
        return end - low if end - low > 1 else 0
    if first == _BIG_U:
        return 3 if low + 2 < high and text[low + 1] == _BIG_S and text[low + 2] == _DOLLAR else 0
    if first in (_BIG_C, _BIG_A):
        return 2 if low + 1 < high and text[low + 1] == _DOLLAR else 0
    return 0


@compiled
def _suffix(classes: Classes, units: Hashes, longest_unit: int, text: Characters, low: int, high: int) -> int:
    """Return the length of the suffix of ``text[low:high]``, the longest one; 0 without one."""
    if low >= high:
        return 0
    last, found = text[high - 1], 0
    before = text[high - 2] if high - low > 1 else 0
    if last == _DOT:
        begin = high - 1
        while begin > low and text[begin - 1] == _DOT:
            begin -= 1
        if high - begin > 1:
            return high - begin
        if high - low > 1 and classes[before] & BEFORE_STOP:
            found = 1
        elif high - low > 2:
            two = text[high - 3]
            if (classes[before] & UPPER and classes[two] & UPPER) or (
                two == _DEGREE and before in (70, 102, 67, 99, 75, 107)
            ):
                found = 1
    elif classes[last] & SUFFIX or (last == _PLUS and is_digit(before)):
        found = 1
    if last == _ELLIPSIS and before == _ELLIPSIS:
        found = 2
    if last in (_SMALL_S, _BIG_S) and before in (_APOSTROPHE, _CURLY):
        found = 2
    for length in range(1, min(longest_unit, high - low - 1) + 1):
        if length > found and is_digit(text[high - length - 1]):
            if is_in(units, hash_of(text, high - length, high)):
                found = length
    return found


@compiled
def _infix(classes: Classes, text: Characters, at: int, low: int, high: int) -> int:
    this = text[at]
    kind = classes[this]
    if kind & ICON:
        return 1
    if kind & LETTER or is_digit(this):
        return 0
    if this == _DOT and at + 1 < high and text[at + 1] == _DOT:
        end = at + 2
        while end < high and text[end] == _DOT:
            end += 1
        return end - at
    if at == low or at + 1 >= high:
        return 0
    before, behind = text[at - 1], text[at + 1]
    letter_before, letter_behind = classes[before] & LETTER, classes[behind] & LETTER
    if this in (_PLUS, _HYPHEN, _STAR, _CARET) and is_digit(before) and (is_digit(behind) or behind == _HYPHEN):
        return 1
    if this == _DOT:
        return 1 if classes[before] & LOWER_OR_QUOTE and classes[behind] & UPPER_OR_QUOTE else 0
    if this == _COMMA:
        return 1 if letter_before and letter_behind else 0
    if not (letter_before or is_digit(before)):
        return 0
    if this in (_COLON, _LESS, _MORE, _EQUAL, _SLASH, _SHORT_DASH, _TILDE):
        return 1 if letter_behind else 0
    if this in (_HYPHEN, _LONG_DASH):
        longest = 3 if this == _HYPHEN else 2
        length = 1
        while length < longest and at + length < high and text[at + length] == this:
            length += 1
        return length if at + length < high and classes[text[at + length]] & LETTER else 0
    return 0


@compiled
def cut_chunk(rules: EnglishRules, text: Characters, size: int, ends: Characters, suffixes: Characters) -> int:
    """Cut ``text[:size]`` into words; ``ends`` gets where each ends, and how many there are is returned.

    `LEFT_TO_SPACY`: the kernel does not know. ``ends`` and ``suffixes`` (for the kernel's own use) have room for
    ``size`` numbers.
    """
    low, high, words, behind, last, special = 0, size, 0, 0, 0, -1
    while low < high and high - low != last:
        special = special_case(rules.special, text, low, high)
        if special >= 0:
            break
        last = high - low
        prefix = _prefix(rules.classes, text, low, high)
        special = special_case(rules.special, text, low + prefix, high) if prefix else -1
        suffix = _suffix(rules.classes, rules.units, rules.longest_unit, text, low + prefix, high) if special < 0 else 0
        if suffix and special_case(rules.special, text, low, high - suffix) >= 0:
            special, prefix = special_case(rules.special, text, low, high - suffix), 0
        if prefix:
            low += prefix
            ends[words] = low
            words += 1
        if suffix:
            suffixes[behind] = high
            behind += 1
            high -= suffix
        if special >= 0:
            break
    if special >= 0:
        words = _put_special(rules.special, special, low, ends, words)
    elif low < high:
        url = is_address(rules.classes, text, low, high)
        if url == LEFT_TO_SPACY:
            return LEFT_TO_SPACY
        words = _put_middle(rules.classes, text, low, high, ends, words, url == 1)
    while behind:
        behind -= 1
        ends[words] = suffixes[behind]
        words += 1
    return words


@compiled
def _put_middle(
    classes: Classes, text: Characters, low: int, high: int, ends: Characters, words: int, whole: bool
) -> int:
    """Put the words of what is left between prefixes and suffixes, one if it is ``whole``."""
    at, start = high if whole else low, low
    while at < high:
        if classes[text[at]] & (LETTER | ICON) == LETTER:
            at += 1
            continue
        length = _infix(classes, text, at, low, high)
        if length and at > low:
            if at > start:
                ends[words] = at
                words += 1
            start = at + length
            ends[words] = start
            words += 1
        at += max(length, 1)
    if start < high:
        ends[words] = high
        words += 1
    return words


@compiled
def rejoin(rules: EnglishRules, text: Characters, ends: Characters, count: int, found: Characters) -> int:
    """Cut special cases that came apart as spaCy's list has them; return the new number of words, or `NOTHING_TO_JOIN`.

    The longest sequence goes first, then the first one; none may begin or end where another one was seen
    (``Tokenizer._apply_special_cases``). ``found`` is for the kernel's own use: one bit for each length of a sequence.
    """
    any_found = False
    for first in range(count):
        value, bits = HASH_START, 0
        for number in range(first, min(count, first + rules.longest_sequence)):
            word = hash_of(text, ends[number - 1] if number else 0, ends[number])
            value = (value ^ word) * HASH_STEP
            if is_in(rules.patterns, value):
                bits |= 1 << (number - first + 1)
            if not is_in(rules.beginnings, value):
                break
        found[first] = bits
        any_found |= bits != 0
    if not any_found:
        return NOTHING_TO_JOIN
    for length in range(rules.longest_sequence, 0, -1):
        for first in range(count):
            if not found[first] & (1 << length):
                continue
            taken = found[first] & _SEEN or found[first + length - 1] & _SEEN
            for number in range(first, first + length):
                found[number] |= _SEEN
            if not taken:
                found[first] |= length << _KEPT
    return _join_kept(rules.special, text, ends, count, found)


@compiled
def _join_kept(cases: SpecialCases, text: Characters, ends: Characters, count: int, found: Characters) -> int:
    words, number, low = 0, 0, 0
    while number < count:
        length = found[number] >> _KEPT
        high = ends[number + length - 1] if length else ends[number]
        special = special_case(cases, text, low, high) if length else -1
        if special < 0:
            for at in range(number, number + max(length, 1)):
                ends[words] = ends[at]
                words += 1
        else:
            if cases.first[special + 1] - cases.first[special] > length:
                return LEFT_TO_SPACY
            words = _put_special(cases, special, low, ends, words)
        low = high
        number += max(length, 1)
    return words
