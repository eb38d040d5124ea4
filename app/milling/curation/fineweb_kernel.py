"""The kernel of ``fineweb_quality``: verdicts over lines and words of a part."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .byte_strings import Bytes, character_at
from .chunk_lookup import WORDS, WordTable
from .chunked_text import TextPart, count_characters
from .compiled import ASK, KEEP, compiled
from .repetition_kernel import Room, repeated

REASONS: Final = ("empty", "line_punct_ratio", "short_line_ratio", "char_dup_ratio", "list_ratio")
EMPTY, LINE_PUNCT, SHORT_LINE, CHAR_DUP, LIST = range(1, 6)
"""Verdicts: the number of the reason in `REASONS`, from 1."""
_NEW_LINE: Final = ord("\n")


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
    part: TextPart,
    table: WordTable,
    rows: npt.NDArray[np.int64],
    limits: FinewebLimits,
    verdicts: npt.NDArray[np.int8],
    room: Room,
) -> None:
    """Fill the verdict of each row."""
    for number in range(len(rows)):
        verdicts[number] = _judge(part, table, rows[number], limits, room)


@compiled
def _judge(part: TextPart, table: WordTable, row: int, limits: FinewebLimits, room: Room) -> int:
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
    """Return whether ``one`` is among ``characters``, which ascend."""
    low, high = 0, len(characters)
    while low < high:
        middle = (low + high) // 2
        if characters[middle] < one:
            low = middle + 1
        else:
            high = middle
    return low < len(characters) and characters[low] == one
