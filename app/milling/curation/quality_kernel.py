"""The kernel of ``gopher_quality``: verdicts over the words of a part."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from . import chunk_lookup
from .byte_strings import Bytes, equal_bytes
from .chunked_text import TextPart, line_break
from .compiled import ASK, KEEP, compiled

REASONS: Final = (
    "gopher_short_doc",
    "gopher_long_doc",
    "gopher_below_avg_threshold",
    "gopher_above_avg_threshold",
    "gopher_too_many_hashes",
    "gopher_too_many_ellipsis",
    "gopher_too_many_bullets",
    "gopher_too_many_end_ellipsis",
    "gopher_below_alpha_threshold",
    "gopher_enough_stop_words",
)
SHORT, LONG, BELOW, ABOVE, HASHES, ELLIPSES, BULLETS, END_ELLIPSES, ALPHA, STOP_WORDS = range(1, 11)
"""Verdicts: the number of the reason in `REASONS`, from 1."""
_HASH, _DOT, _HYPHEN = map(ord, "#.-")
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
    stop_begin: npt.NDArray[np.int64]
    """Shape ``[stop words + 1]``: where each begins."""


@compiled
def judge_quality(
    part: TextPart,
    table: chunk_lookup.WordTable,
    rows: npt.NDArray[np.int64],
    limits: QualityLimits,
    verdicts: npt.NDArray[np.int8],
    seen: npt.NDArray[np.bool_],
) -> None:
    """Fill the verdict of each row; ``seen`` has room for as many values as there are stop words."""
    for number in range(len(rows)):
        row = rows[number]
        verdicts[number] = ASK if part.irregular[row] else _judge(part, table, row, limits, seen)


@compiled
def _judge(
    part: TextPart, table: chunk_lookup.WordTable, row: int, limits: QualityLimits, seen: npt.NDArray[np.bool_]
) -> int:
    words = full = characters = alphabetic = 0
    for chunk in range(part.first[row], part.last[row]):
        entry = part.entry[chunk]
        words += table.chunks[entry, chunk_lookup.WORDS]
        full += table.chunks[entry, chunk_lookup.FULL_WORDS]
        characters += table.chunks[entry, chunk_lookup.FULL_CHARACTERS]
        alphabetic += table.chunks[entry, chunk_lookup.ALPHABETIC_WORDS]
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
def _judge_lines(part: TextPart, table: chunk_lookup.WordTable, row: int, limits: QualityLimits, words: int) -> int:
    """Count symbols and lines in one pass."""
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
def _ends_with_ellipsis(part: TextPart, table: chunk_lookup.WordTable, row: int, chunk: int) -> bool:
    """Return whether the text has an ellipsis, U+2026 or three stops, at the end of the chunk."""
    begin = part.chunk_begin[chunk] + table.chunks[part.entry[chunk], chunk_lookup.BYTES] - 3
    if begin < part.begin[row]:
        return False
    three_dots = part.data[begin] == _DOT and part.data[begin + 1] == _DOT and part.data[begin + 2] == _DOT
    return three_dots or _is_mark(part.data, begin, _ELLIPSIS_END)


@compiled
def _has_stop_words(
    part: TextPart, table: chunk_lookup.WordTable, row: int, limits: QualityLimits, seen: npt.NDArray[np.bool_]
) -> bool:
    """Return whether enough different stop words are among the text's words."""
    stops = len(limits.stop_begin) - 1
    seen[:] = False
    found = 0
    for chunk in range(part.first[row], part.last[row]):
        entry = part.entry[chunk]
        place = part.chunk_begin[chunk]
        for word in range(
            table.chunks[entry, chunk_lookup.FIRST_WORD],
            table.chunks[entry, chunk_lookup.FIRST_WORD] + table.chunks[entry, chunk_lookup.WORDS],
        ):
            size = chunk_lookup.word_bytes(table.words, word)
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
