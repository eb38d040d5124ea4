"""The kernel of ``gopher_repetition``: verdicts over lines, paragraphs and n-grams of a part."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.stages.curation.byte_strings import Bytes, eight_bytes, equal_bytes
from tokenmill.stages.curation.compiled import compiled
from tokenmill.stages.curation.part import Part
from tokenmill.stages.curation.repeated_strings import Numbers, Slots, first_like, repeated, slots_for
from tokenmill.stages.curation.verdicts import ASK, KEEP
from tokenmill.stages.curation.word_table import WordTable

REASONS: Final = ("empty", "dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac")
"""Behind them come those of the n-grams, ``top_{n}_gram`` and ``duplicated_{n}_n_grams``, in the parameters' order."""
EMPTY, PARA, PARA_CHAR, LINE, LINE_CHAR, TOP = range(1, 7)
"""Verdicts: the number of the reason, from 1."""
WINDOW: Final = 16
"""Bytes. Few places of a text have so many in common, and most n-grams of five words or more are longer."""
_NEW_LINE: Final = ord("\n")
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)


class RepetitionLimits(NamedTuple):
    """The step's parameters; 0 where a rule is off."""

    dup_line_frac: float
    dup_para_frac: float
    dup_line_char_frac: float
    dup_para_char_frac: float
    top_n: npt.NDArray[np.int64]
    top_share: npt.NDArray[np.float64]
    dup_n: npt.NDArray[np.int64]
    dup_share: npt.NDArray[np.float64]


class Room(NamedTuple):
    """Memory of the kernel, enough for the longest text."""

    begin: Numbers
    """Of lines, paragraphs, words or n-grams; shape ``[words or lines + 1]``, as the next three."""
    end: Numbers
    characters: Numbers
    """Characters of all words before each."""
    hashes: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int32]
    slots: Slots
    joined: Bytes
    """A text without its white space, and eight bytes more."""


@compiled
def judge_repetition(
    part: Part,
    table: WordTable,
    rows: npt.NDArray[np.int64],
    limits: RepetitionLimits,
    verdicts: npt.NDArray[np.int8],
    room: Room,
) -> None:
    """Fill the verdict of each row."""
    for number in range(len(rows)):
        row = rows[number]
        verdict = _judge_lines(part, table, row, limits, room)
        if verdict == KEEP:
            verdict = ASK if part.irregular[row] else _judge_words(part, table, row, limits, room)
        verdicts[number] = verdict


@compiled
def _judge_lines(part: Part, table: WordTable, row: int, limits: RepetitionLimits, room: Room) -> int:
    data, low, high, characters = part.data, part.begin[row], part.end[row], part.characters[row]
    if low == high:
        return EMPTY
    seed = table.seed[0]
    if limits.dup_para_frac or limits.dup_para_char_frac:
        first, last = part.first[row], part.last[row]
        count = 1
        room.begin[0] = room.end[0] = low
        if first < last:
            end = part.chunk_begin[last - 1] + table.key_size[part.entry[last - 1]]
            count = _split(data, part.chunk_begin[first], end, 2, room)
        elements, again = repeated(data, room.begin, room.end, count, room.slots, seed)
        if limits.dup_para_frac and elements / count > limits.dup_para_frac:
            return PARA
        if limits.dup_para_char_frac and again / characters > limits.dup_para_char_frac:
            return PARA_CHAR
    if limits.dup_line_frac or limits.dup_line_char_frac:
        count = _split(data, low, high, 1, room)
        elements, again = repeated(data, room.begin, room.end, count, room.slots, seed)
        if limits.dup_line_frac and elements / count > limits.dup_line_frac:
            return LINE
        if limits.dup_line_char_frac and again / characters > limits.dup_line_char_frac:
            return LINE_CHAR
    return KEEP


@compiled
def _split(data: Bytes, low: int, high: int, least: int, room: Room) -> int:
    """Split at each run of ``least`` line feeds or more; return how many pieces there are."""
    count, at = 0, low
    room.begin[0] = low
    while at < high:
        if data[at] != _NEW_LINE:
            at += 1
            continue
        start = at
        while at < high and data[at] == _NEW_LINE:
            at += 1
        if at - start >= least:
            room.end[count] = start
            count += 1
            room.begin[count] = at
    room.end[count] = high
    return count + 1


@compiled
def _judge_words(part: Part, table: WordTable, row: int, limits: RepetitionLimits, room: Room) -> int:
    words = _join(part, table, row, room)
    characters = part.characters[row]
    for rule in range(len(limits.top_n)):
        n = limits.top_n[rule]
        if n > words:
            continue
        share = limits.top_share[rule]
        if _most_in_top(words, n, room) / characters > share and _top(words, n, room) / characters > share:
            return TOP + rule
    if len(limits.dup_n):
        _mark_again(words, room)
    for rule in range(len(limits.dup_n)):
        n, share = limits.dup_n[rule], limits.dup_share[rule]
        if _most_duplicated(words, n, room) / characters > share:
            if _duplicated(words, n, room, table.seed[0]) / characters > share:
                return TOP + len(limits.top_n) + rule
    return KEEP


@compiled
def _join(part: Part, table: WordTable, row: int, room: Room) -> int:
    """Put the text's words into ``room``, one after the other; return their number."""
    count = place = characters = 0
    for chunk in range(part.first[row], part.last[row]):
        entry, begin = part.entry[chunk], part.chunk_begin[chunk]
        for at in range(table.key_size[entry]):
            room.joined[place + at] = part.data[begin + at]
        first = table.first_word[entry]
        for word in range(first, first + table.words[entry]):
            room.begin[count], room.characters[count] = place, characters
            room.hashes[count] = table.word_hash[word]
            place += table.word_bytes[word]
            characters += table.word_characters[word]
            count += 1
    room.begin[count], room.characters[count] = place, characters
    return count


@compiled
def _n_gram_hash(room: Room, first: int, n: int) -> np.uint64:
    value = np.uint64(0)
    for word in range(first, first + n):
        value = (value ^ room.hashes[word]) * _FACTOR
        value ^= value >> _SHIFT
    return value


@compiled
def _most_in_top(words: int, n: int, room: Room) -> int:
    """Return what `_top` gives at most: the same without looking whether n-grams of one hash value are the same."""
    size = slots_for(words)
    counts = room.slots
    counts[:size] = 0
    mask, most = np.uint64(size - 1), 0
    for first in range(words - n + 1):
        slot = _n_gram_hash(room, first, n) & mask
        counts[slot] += 1
        most = max(most, counts[slot] * (room.characters[first + n] - room.characters[first] + n - 1))
    return most


@compiled
def _same_words(room: Room, one: int, other: int, n: int) -> bool:
    begin, place = room.begin[one], room.begin[other]
    for word in range(1, n + 1):
        if room.begin[one + word] - begin != room.begin[other + word] - place:
            return False
    return equal_bytes(room.joined, begin, room.joined, place, room.begin[one + n] - begin)


@compiled
def _top(words: int, n: int, room: Room) -> int:
    """Return the characters, with a space between words, of all occurrences of the n-gram that is most frequent.

    Of several, it is the one that comes first.
    """
    size = slots_for(words)
    slots = room.slots
    slots[:size] = 0
    mask = np.uint64(size - 1)
    best = 0
    for first in range(words - n + 1):
        room.counts[first] = 0
        slot = _n_gram_hash(room, first, n) & mask
        found = first
        while slots[slot]:
            if _same_words(room, slots[slot] - 1, first, n):
                found = slots[slot] - 1
                break
            slot = (slot + np.uint64(1)) & mask
        if found == first:
            slots[slot] = first + 1
        room.counts[found] += 1
    for first in range(words - n + 1):
        if room.counts[first] > room.counts[best]:
            best = first
    return room.counts[best] * (room.characters[best + n] - room.characters[best] + n - 1)


@compiled
def _mark_again(words: int, room: Room) -> None:
    """Set ``room.counts`` of each word to 1 where the `WINDOW` bytes from it on may come again, from a word on, else 0.

    An n-gram of so many bytes or more that comes twice begins at such words.
    """
    size = slots_for(words)
    slots = room.slots
    slots[:size] = 0
    mask, end = np.uint64(size - 1), room.begin[words]
    for word in range(words):
        begin = room.begin[word]
        if end - begin >= WINDOW:
            slots[_window_hash(room.joined, begin) & mask] += 1
    for word in range(words):
        begin = room.begin[word]
        room.counts[word] = end - begin < WINDOW or slots[_window_hash(room.joined, begin) & mask] > 1


@compiled
def _window_hash(joined: Bytes, begin: int) -> np.uint64:
    value = eight_bytes(joined, begin) * _FACTOR
    value = ((value ^ (value >> _SHIFT)) + eight_bytes(joined, begin + 8)) * _FACTOR
    return value ^ (value >> _SHIFT)


@compiled
def _may_come_again(room: Room, first: int, n: int) -> bool:
    return room.counts[first] > 0 or room.begin[first + n] - room.begin[first] < WINDOW


@compiled
def _most_duplicated(words: int, n: int, room: Room) -> int:
    """Return what `_duplicated` gives at most: the characters of all n-grams that may come again."""
    covered = again = 0
    for first in range(words - n + 1):
        if _may_come_again(room, first, n):
            again += room.characters[first + n] - room.characters[max(first, covered)]
            covered = first + n
    return again


@compiled
def _duplicated(words: int, n: int, room: Room, seed: np.uint64) -> int:
    """Return the characters of the n-grams, words joined without a space, that came before; none overlap."""
    size = slots_for(words)
    room.slots[:size] = 0
    for first in range(words - n + 1):
        room.end[first] = room.begin[first + n]
    first = again = 0
    while first < words - n + 1:
        if not _may_come_again(room, first, n):
            first += 1
        elif first_like(room.joined, room.begin, room.end, first, room.slots, size, seed) != first:
            again += room.characters[first + n] - room.characters[first]
            first += n
        else:
            first += 1
    return again
