"""The kernels of ``c4_quality``: which lines stay, how many sentences these have."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .byte_strings import Bytes, character_at
from .chunk_lookup import (
    BYTES,
    CHARACTERS,
    FIRST_WORD,
    WORD_PUNCTUATION,
    WORD_SENTENCE_END,
    WORDS,
    WordTable,
    word_flags,
)
from .chunked_text import CUT, WHITE, TextPart, line_break
from .compiled import ASK, KEEP, compiled
from .english_rules import DIGIT, EnglishRules

REASONS: Final = ("lorem_ipsum", "curly_bracket", "too_few_sentences")
LOREM, CURLY, FEW_SENTENCES = 1, 2, 3
"""Verdicts: the number of the reason in `REASONS`, from 1."""

_NEW_LINE, _OPEN, _CLOSE, _CURLY, _DOT, _SPACE = map(ord, "\n[]{. ")
_CITATION_EDIT: Final = np.frombuffer(b"edit]", np.uint8)
_CITATION_NEEDED: Final = np.frombuffer(b"citation needed]", np.uint8)
_LOREM: Final = np.frombuffer(b"lorem ipsum", np.uint8)
_JAVASCRIPT: Final = np.frombuffer(b"javascript", np.uint8)
_TERMS: Final = np.frombuffer(b"terms of use", np.uint8)
_PRIVACY: Final = np.frombuffer(b"privacy policy", np.uint8)
_COOKIE: Final = np.frombuffer(b"cookie policy", np.uint8)
_USES: Final = np.frombuffer(b"uses cookies", np.uint8)
_USE_OF: Final = np.frombuffer(b"use of cookies", np.uint8)
_USE: Final = np.frombuffer(b"use cookies", np.uint8)
_HAS_LOREM, _HAS_JAVASCRIPT, _HAS_CURLY, _HAS_POLICY, _HAS_KELVIN = 1, 2, 4, 8, 16


class C4Limits(NamedTuple):
    """The step's parameters."""

    remove_citations: bool
    filter_no_terminal_punct: bool
    min_num_sentences: float
    min_words_per_line: float
    max_word_length: float
    filter_lorem_ipsum: bool
    filter_javascript: bool
    filter_curly_bracket: bool
    filter_policy: bool


@compiled
def keep_lines(
    part: TextPart,
    table: WordTable,
    rules: EnglishRules,
    rows: npt.NDArray[np.int64],
    limits: C4Limits,
    verdicts: npt.NDArray[np.int8],
    kept: Bytes,
    bounds: npt.NDArray[np.int64],
) -> None:
    """Write the lines that stay of each row into ``kept[bounds[n]:bounds[n + 1]]``, with line feeds between them."""
    place = 0
    for number in range(len(rows)):
        bounds[number] = place
        verdicts[number], place = _keep_lines(part, table, rules, rows[number], limits, kept, place)
    bounds[len(rows)] = place


@compiled
def _keep_lines(
    part: TextPart, table: WordTable, rules: EnglishRules, row: int, limits: C4Limits, kept: Bytes, place: int
) -> tuple[int, int]:
    data, at, end = part.data, part.begin[row], part.end[row]
    chunk, last = part.first[row], part.last[row]
    start = place
    while at < end:
        length = 0
        while at < end:
            length = line_break(data, at, end) if data[at] < 0x20 or data[at] >= 0x80 else 0
            if length:
                break
            at += 1
        first = chunk
        words = longest = size = 0
        while chunk < last and part.chunk_begin[chunk] < at:
            whole = part.gap[chunk] != CUT
            words += whole
            size = table.chunks[part.entry[chunk], CHARACTERS] + (0 if whole else size)
            longest = max(longest, size)
            chunk += 1
        at += length
        if words < limits.min_words_per_line:
            continue
        if limits.max_word_length != -1 and longest > limits.max_word_length:
            continue
        line = place + (place > start)
        low = part.chunk_begin[first]
        high = part.chunk_begin[chunk - 1] + table.chunks[part.entry[chunk - 1], BYTES]
        behind = _copy_line(data, low, high, rules.classes, limits.remove_citations, kept, line)
        if limits.filter_no_terminal_punct and not _ends_a_sentence(kept, line, behind):
            continue
        found = _look_for_phrases(kept, line, behind)
        if found & _HAS_KELVIN and limits.filter_policy:
            return ASK, start
        if found & _HAS_LOREM and limits.filter_lorem_ipsum:
            return LOREM, start
        if found & _HAS_JAVASCRIPT and limits.filter_javascript:
            continue
        if found & _HAS_CURLY and limits.filter_curly_bracket:
            return CURLY, start
        if found & _HAS_POLICY and limits.filter_policy:
            continue
        if place > start:
            kept[place] = _NEW_LINE
        elif behind == line:
            return ASK, start  # an empty first line: the next one would not know that it is not the first
        place = behind
    return KEEP, place


@compiled
def _copy_line(
    data: Bytes, low: int, high: int, classes: npt.NDArray[np.uint16], remove_citations: bool, kept: Bytes, place: int
) -> int:
    r"""Copy a line, without what ``\[\d*]|\[edit]|\[citation needed]`` matches; return where the copy ends."""
    while low < high:
        if data[low] == _OPEN and remove_citations:
            length = _citation(data, low, high, classes)
            if length:
                low += length
                continue
        kept[place] = data[low]
        place += 1
        low += 1
    return place


@compiled
def _citation(data: Bytes, low: int, high: int, classes: npt.NDArray[np.uint16]) -> int:
    at = low + 1
    if at >= high:
        return 0
    if _has_at(data, at, high, _CITATION_EDIT, False):
        return 1 + len(_CITATION_EDIT)
    if _has_at(data, at, high, _CITATION_NEEDED, False):
        return 1 + len(_CITATION_NEEDED)
    while at < high and data[at] != _CLOSE:
        character, length = character_at(data, at)
        if not classes[character] & DIGIT:
            return 0
        at += length
    return at + 1 - low if at < high else 0


@compiled
def _has_at(data: Bytes, at: int, end: int, phrase: Bytes, any_case: bool) -> bool:
    """Return whether ``phrase``, small letters, begins at ``at``, or does in letters of ``any_case``."""
    if end - at < len(phrase):
        return False
    for number in range(len(phrase)):
        byte = data[at + number]
        if any_case and 65 <= byte <= 90:
            byte += 32
        if byte != phrase[number]:
            return False
    return True


@compiled
def _ends_a_sentence(data: Bytes, begin: int, end: int) -> bool:
    if begin == end:
        return False
    last = data[end - 1]
    if last == _DOT:
        return not (end - begin > 2 and data[end - 2] == _DOT and data[end - 3] == _DOT)
    return last in (0x3F, 0x21, 0x22, 0x27)  # ? ! " '


@compiled
def _look_for_phrases(data: Bytes, begin: int, end: int) -> int:
    """Return which of the words that remove lines or texts are in a line, as bits.

    `str.lower` makes ASCII letters of two others: of the Kelvin sign, which is reported, and of U+0130, whose combining
    dot is in none of the phrases.
    """
    found = 0
    for at in range(begin, end):
        byte = data[at]
        if byte == _CURLY:
            found |= _HAS_CURLY
        elif byte == 0xE2:
            found |= _HAS_KELVIN if data[at + 1] == 0x84 and data[at + 2] == 0xAA else 0
        byte |= 0x20
        next_byte = data[at + 1] | 0x20  # the array is longer than the line
        if byte == 0x75 and next_byte == 0x73:
            uses = _has_at(data, at, end, _USES, True) or _has_at(data, at, end, _USE_OF, True)
            found |= _HAS_POLICY if uses or _has_at(data, at, end, _USE, True) else 0
        elif byte == 0x74 and next_byte == 0x65:
            found |= _HAS_POLICY if _has_at(data, at, end, _TERMS, True) else 0
        elif byte == 0x70 and next_byte == 0x72:
            found |= _HAS_POLICY if _has_at(data, at, end, _PRIVACY, True) else 0
        elif byte == 0x63 and next_byte == 0x6F:
            found |= _HAS_POLICY if _has_at(data, at, end, _COOKIE, True) else 0
        elif byte == 0x6C and next_byte == 0x6F:
            found |= _HAS_LOREM if _has_at(data, at, end, _LOREM, True) else 0
        elif byte == 0x6A and next_byte == 0x61:
            found |= _HAS_JAVASCRIPT if _has_at(data, at, end, _JAVASCRIPT, True) else 0
    return found


@compiled
def count_sentences(
    part: TextPart, table: WordTable, rows: npt.NDArray[np.int64], least: float, verdicts: npt.NDArray[np.int8]
) -> None:
    """Fill the verdict of each row whose lines are separated by line feeds: `KEEP`, `FEW_SENTENCES` or `ASK`."""
    for number in range(len(rows)):
        row = rows[number]
        if part.irregular[row]:
            verdicts[number] = ASK
        else:
            few = least != -1 and _sentences(part, table, row, least) < least
            verdicts[number] = FEW_SENTENCES if few else KEEP


@compiled
def _sentences(part: TextPart, table: WordTable, row: int, least: float) -> int:
    """Return the sentences of all lines of a row, as spaCy's sentencizer counts them in each; ``least`` are enough."""
    data, at, end = part.data, part.begin[row], part.end[row]
    chunk, last = part.first[row], part.last[row]
    sentences = 0
    while at <= end and sentences < least and end > part.begin[row]:
        high = at
        while high < end and data[high] != _NEW_LINE:
            high += 1
        sentences += 1
        ended = False
        place = at
        while chunk < last and part.chunk_begin[chunk] < high:
            entry = part.entry[chunk]
            if ended and part.chunk_begin[chunk] > place and part.gap[chunk] == WHITE:
                sentences += 1
                ended = False
            for word in range(
                table.chunks[entry, FIRST_WORD], table.chunks[entry, FIRST_WORD] + table.chunks[entry, WORDS]
            ):
                flags = word_flags(table.words, word)
                if flags & WORD_SENTENCE_END:
                    ended = True
                elif ended and not flags & WORD_PUNCTUATION:
                    sentences += 1
                    ended = False
            place = part.chunk_begin[chunk] + table.chunks[entry, BYTES]
            chunk += 1
        if ended and high - place > 0 and not (high - place == 1 and data[place] == _SPACE):
            sentences += 1  # the white space behind the last word is a word by itself
        at = high + 1
    return sentences
