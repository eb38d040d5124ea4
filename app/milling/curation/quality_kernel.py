"""The kernels of ``gopher_quality``, ``fineweb_quality`` and ``c4_quality``: verdicts over words and lines of a part.

A verdict is the number of its reason, from 1.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .chunk_lookup import (
    ALPHABETIC_WORDS,
    BYTES,
    CHARACTERS,
    CUT,
    FIRST_WORD,
    FULL_CHARACTERS,
    FULL_WORDS,
    WHITE,
    WORD_PUNCTUATION,
    WORD_SENTENCE_END,
    WORDS,
    TextPart,
    WordTable,
    count_characters,
    line_break,
    word_bytes,
    word_flags,
)
from .chunk_words import DIGIT, EnglishRules
from .compiled import ASK, KEEP, Bytes, Flags, Numbers, Verdicts, character_at, compiled, equal_bytes
from .repetition_kernel import Room, repeated

QUALITY_REASONS: Final = (
    *("gopher_short_doc", "gopher_long_doc", "gopher_below_avg_threshold", "gopher_above_avg_threshold"),
    *("gopher_too_many_hashes", "gopher_too_many_ellipsis", "gopher_too_many_bullets", "gopher_too_many_end_ellipsis"),
    *("gopher_below_alpha_threshold", "gopher_enough_stop_words"),
)
SHORT, LONG, BELOW, ABOVE, HASHES, ELLIPSES, BULLETS, END_ELLIPSES, ALPHA, STOP_WORDS = range(1, 11)
_HASH, _DOT, _HYPHEN, _NEW_LINE, _OPEN, _CLOSE, _CURLY, _SPACE = map(ord, "#.-\n[]{ ")
_ELLIPSIS_END, _BULLET_END = 0xA6, 0xA2  # of U+2026 and U+2022


class QualityLimits(NamedTuple):
    """The step's parameters; 0 where a rule is off."""

    min_doc_words: float
    max_doc_words: float
    min_avg_word_length: float
    max_avg_word_length: float
    max_symbol_word_ratio: float
    max_bullet_lines_ratio: float
    max_ellipsis_lines_ratio: float
    max_non_alpha_words_ratio: float
    min_stop_words: float
    stop_words: Bytes
    """All stop words in UTF-8, and eight bytes more."""
    stop_begin: Numbers
    """Shape ``[stop words + 1]``: where each begins."""


@compiled
def judge_quality(
    part: TextPart, table: WordTable, rows: Numbers, limits: QualityLimits, verdicts: Verdicts, seen: Flags
) -> None:
    """Fill the verdict of each row; ``seen`` has room for as many values as there are stop words."""
    for number in range(len(rows)):
        row = rows[number]
        verdicts[number] = ASK if part.irregular[row] else _gopher_verdict(part, table, row, limits, seen)


@compiled
def _gopher_verdict(part: TextPart, table: WordTable, row: int, limits: QualityLimits, seen: Flags) -> int:
    words = full = characters = alphabetic = 0
    for chunk in range(part.first[row], part.last[row]):
        entry = part.entry[chunk]
        words += table.chunks[entry, WORDS]
        full += table.chunks[entry, FULL_WORDS]
        characters += table.chunks[entry, FULL_CHARACTERS]
        alphabetic += table.chunks[entry, ALPHABETIC_WORDS]
    if limits.min_doc_words and full < limits.min_doc_words:
        return SHORT
    if limits.max_doc_words and full > limits.max_doc_words:
        return LONG
    if words == 0 or full == 0:
        return ASK
    if limits.min_avg_word_length and characters / full < limits.min_avg_word_length:
        return BELOW
    if limits.max_avg_word_length and characters / full > limits.max_avg_word_length:
        return ABOVE
    verdict = _judge_lines(part, table, row, limits, words)
    if verdict != KEEP:
        return verdict
    if limits.max_non_alpha_words_ratio and alphabetic / words < limits.max_non_alpha_words_ratio:
        return ALPHA
    if limits.min_stop_words and not _has_stop_words(part, table, row, limits, seen):
        return STOP_WORDS
    return KEEP


@compiled
def _judge_lines(part: TextPart, table: WordTable, row: int, limits: QualityLimits, words: int) -> int:
    data, at, end = part.data, part.begin[row], part.end[row]
    hashes = ellipses = lines = bullets = ends = dots = 0
    chunk, last = part.first[row], part.last[row]
    while at < end:
        first_of_line = chunk
        length = 0
        while at < end:
            byte = data[at]
            if 0x2E < byte < 0x80 or byte == 0x20:
                dots = 0
                at += 1
                continue
            length = line_break(data, at, end)
            if length:
                break
            hashes += byte == _HASH
            dots = dots + 1 if byte == _DOT else 0
            if dots == 3:
                ellipses += 1
                dots = 0
            elif byte == 0xE2:
                ellipses += _is_mark(data, at, _ELLIPSIS_END)
            at += 1
        while chunk < last and part.chunk_begin[chunk] < at:
            chunk += 1
        dots = 0
        lines += 1
        if chunk > first_of_line:
            start = part.chunk_begin[first_of_line]
            bullets += data[start] == _HYPHEN or _is_mark(data, start, _BULLET_END)
            ends += _ends_with_ellipsis(part, table, row, chunk - 1)
        at += length
    ratio = limits.max_symbol_word_ratio
    if ratio and hashes / words > ratio:
        return HASHES
    if ratio and ellipses / words > ratio:
        return ELLIPSES
    if limits.max_bullet_lines_ratio and bullets / lines > limits.max_bullet_lines_ratio:
        return BULLETS
    if limits.max_ellipsis_lines_ratio and ends / lines > limits.max_ellipsis_lines_ratio:
        return END_ELLIPSES
    return KEEP


@compiled
def _is_mark(data: Bytes, at: int, last: int) -> bool:
    """Return whether the mark of general punctuation begins here that has this last byte."""
    return data[at] == 0xE2 and data[at + 1] == 0x80 and data[at + 2] == last


@compiled
def _ends_with_ellipsis(part: TextPart, table: WordTable, row: int, chunk: int) -> bool:
    """Return whether the text has an ellipsis, U+2026 or three stops, at the end of the chunk."""
    begin = part.chunk_begin[chunk] + table.chunks[part.entry[chunk], BYTES] - 3
    if begin < part.begin[row]:
        return False
    three_dots = part.data[begin] == _DOT and part.data[begin + 1] == _DOT and part.data[begin + 2] == _DOT
    return three_dots or _is_mark(part.data, begin, _ELLIPSIS_END)


@compiled
def _has_stop_words(part: TextPart, table: WordTable, row: int, limits: QualityLimits, seen: Flags) -> bool:
    stops = len(limits.stop_begin) - 1
    seen[:] = False
    found = 0
    for chunk in range(part.first[row], part.last[row]):
        entry = part.entry[chunk]
        place = part.chunk_begin[chunk]
        for word in range(
            table.chunks[entry, FIRST_WORD], table.chunks[entry, FIRST_WORD] + table.chunks[entry, WORDS]
        ):
            size = word_bytes(table.words, word)
            for stop in range(stops):
                begin = limits.stop_begin[stop]
                if limits.stop_begin[stop + 1] - begin == size and not seen[stop]:
                    if equal_bytes(part.data, place, limits.stop_words, begin, size):
                        seen[stop] = True
                        found += 1
            if found >= limits.min_stop_words:
                return True
            place += size
    return found >= limits.min_stop_words


FINEWEB_REASONS: Final = ("empty", "line_punct_ratio", "short_line_ratio", "char_dup_ratio", "list_ratio")
EMPTY, LINE_PUNCT, SHORT_LINE, CHAR_DUP, LIST = range(1, 6)


class FinewebLimits(NamedTuple):
    """The step's parameters."""

    line_punct_thr: float
    line_punct_exclude_zero: bool
    short_line_thr: float
    short_line_length: float
    char_duplicates_ratio: float
    new_line_ratio: float
    stop_chars: npt.NDArray[np.int32]
    """Code points, ascending."""


@compiled
def judge_fineweb(
    part: TextPart, table: WordTable, rows: Numbers, limits: FinewebLimits, verdicts: Verdicts, room: Room
) -> None:
    """Fill the verdict of each row."""
    for number in range(len(rows)):
        verdicts[number] = _fineweb_verdict(part, table, rows[number], limits, room)


@compiled
def _fineweb_verdict(part: TextPart, table: WordTable, row: int, limits: FinewebLimits, room: Room) -> int:
    data, low, stop = part.data, part.begin[row], part.end[row]
    chunk, last = part.first[row], part.last[row]
    lines = new_lines = punctuated = short = 0
    while low <= stop:
        high = low
        while high < stop and data[high] != _NEW_LINE:
            high += 1
        new_lines += high < stop
        if chunk < last and part.chunk_begin[chunk] < high:
            room.begin[lines], room.end[lines] = low, high
            lines += 1
            punctuated += _is_in(limits.stop_chars, _last_character(data, high))
            short += count_characters(data, low, high) <= limits.short_line_length
            while chunk < last and part.chunk_begin[chunk] < high:
                chunk += 1
        low = high + 1
    if lines == 0:
        return EMPTY
    ratio = punctuated / lines
    if ratio < limits.line_punct_thr and not (ratio == 0 and limits.line_punct_exclude_zero):
        return LINE_PUNCT
    if short / lines > limits.short_line_thr:
        return SHORT_LINE
    characters = repeated(data, room.begin, room.end, lines, room.slots, table.seed[0])[1]
    if characters / (part.characters[row] - new_lines) > limits.char_duplicates_ratio:
        return CHAR_DUP
    if part.irregular[row]:
        return ASK
    words = 0
    for number in range(part.first[row], last):
        words += table.chunks[part.entry[number], WORDS]
    if words == 0:
        return ASK
    return LIST if new_lines / words > limits.new_line_ratio else KEEP


@compiled
def _last_character(data: Bytes, end: int) -> int:
    at = end - 1
    while (data[at] & 0xC0) == 0x80:
        at -= 1
    return character_at(data, at)[0]


@compiled
def _is_in(characters: npt.NDArray[np.int32], one: int) -> bool:
    low, high = 0, len(characters)
    while low < high:
        middle = (low + high) // 2
        if characters[middle] < one:
            low = middle + 1
        else:
            high = middle
    return low < len(characters) and characters[low] == one


C4_REASONS: Final = ("lorem_ipsum", "curly_bracket", "too_few_sentences")
LOREM, CURLY, FEW_SENTENCES = 1, 2, 3
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
    rows: Numbers,
    limits: C4Limits,
    verdicts: Verdicts,
    kept: Bytes,
    bounds: Numbers,
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
def count_sentences(part: TextPart, table: WordTable, rows: Numbers, least: float, verdicts: Verdicts) -> None:
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
