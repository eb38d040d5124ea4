"""Cutting one chunk (characters between white space) into words, as spaCy's blank English tokenizer does: a kernel.

The loop is that of ``Tokenizer._split_affixes`` and ``_attach_tokens`` (spaCy 3.8, ``tokenizer.pyx``) over indices
instead of copies of the rest, so a chunk takes a time in proportion to its length. What hangs on one of spaCy's lists
of special cases, and addresses with ``@``, are left to spaCy.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from . import english_rules
from .compiled import compiled
from .english_rules import (
    AT_LABEL_END,
    BEFORE_STOP,
    HASH_FACTOR,
    HASH_SEED,
    ICON,
    IN_LABEL,
    IN_TOP_LEVEL,
    LETTER,
    LOWER_OR_QUOTE,
    PREFIX,
    SUFFIX,
    UPPER,
    UPPER_OR_QUOTE,
    EnglishRules,
    SpecialCases,
)

LEFT_TO_SPACY: Final = -1
"""The answer where a kernel does not know how spaCy cuts a chunk."""
HASH_START: Final = np.uint64(HASH_SEED)
HASH_STEP: Final = np.uint64(HASH_FACTOR)

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
    """Return whether ``text[low:high]`` is an address by spaCy's expression: 1, 0, or `LEFT_TO_SPACY`.

    Its host begins at the beginning, behind a scheme, or behind any ``@``.
    """
    dot = False
    for at in range(low, high):
        dot |= text[at] == _DOT
    if not dot:
        return 0
    answer = _from_host(classes, text, low, high)
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
    """Return whether ``text[low:high]`` is a host and what may follow it."""
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
    """Return 1 if ``text[low:high]`` is a host name of two labels or more, else 0."""
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
ends_of: Final = compiled(english_rules.ends_of)
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
    if not (cases.ends_of_sizes[ends_of(text[low], text[high - 1])] >> np.uint64(min(size, 63))) & np.uint64(1):
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
    """Return the length of the prefix of ``text[low:high]``; 0 without one."""
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
    """Return the length of the infix at ``at`` of ``text[low:high]``; 0 without one."""
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
