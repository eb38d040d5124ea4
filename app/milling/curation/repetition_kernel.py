"""The kernel of ``gopher_repetition``: verdicts over lines, paragraphs, n-grams and repeated strings of a part."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .chunk_lookup import (
    BYTES,
    FIRST_WORD,
    HASH,
    POWER,
    WHITE,
    WORDS,
    TextPart,
    WordTable,
    count_characters,
    word_bytes,
    word_characters,
)
from .chunk_words import Hashes
from .compiled import ASK, KEEP, Bytes, Numbers, Verdicts, compiled, equal_bytes, hash_bytes

Slots = npt.NDArray[np.int32]


@compiled
def slots_for(count: int) -> int:
    """Return the size of a table for so many strings: a power of two, at most half full."""
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@compiled
def first_like(data: Bytes, begin: Numbers, end: Numbers, number: int, slots: Slots, size: int, seed: np.uint64) -> int:
    """Return the first number in ``slots[:size]`` whose string equals that of ``number``, which is put there if new."""
    low, length = begin[number], end[number] - begin[number]
    mask = np.uint64(size - 1)
    slot = hash_bytes(data, low, end[number], seed) & mask
    while slots[slot]:
        other = slots[slot] - 1
        if end[other] - begin[other] == length and equal_bytes(data, low, data, begin[other], length):
            return other
        slot = (slot + np.uint64(1)) & mask
    slots[slot] = number + 1
    return number


@compiled
def repeated(data: Bytes, begin: Numbers, end: Numbers, count: int, slots: Slots, seed: np.uint64) -> tuple[int, int]:
    """Return how many of the first ``count`` strings came before, and how many characters these have together."""
    size = slots_for(count)
    slots[:size] = 0
    elements = characters = 0
    for number in range(count):
        if first_like(data, begin, end, number, slots, size, seed) != number:
            elements += 1
            characters += count_characters(data, begin[number], end[number])
    return elements, characters


REPETITION_REASONS: Final = ("empty", "dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac")
"""Behind them come those of the n-grams, ``top_{n}_gram`` and ``duplicated_{n}_n_grams``, in the parameters' order."""
EMPTY, PARA, PARA_CHAR, LINE, LINE_CHAR, TOP = range(1, 7)
"""Verdicts: the number of the reason, from 1."""
_NEW_LINE: Final = ord("\n")
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)
_ONE: Final = np.uint64(1)
_SIX_BITS: Final = np.uint64(63)
_BIT_PLACES: Final = (np.uint64(58), np.uint64(52), np.uint64(46))


class RepetitionLimits(NamedTuple):
    """The step's parameters; 0 where a rule is off."""

    dup_line_frac: float
    dup_para_frac: float
    dup_line_char_frac: float
    dup_para_char_frac: float
    top_n: Numbers
    top_share: npt.NDArray[np.float64]
    dup_n: Numbers
    dup_share: npt.NDArray[np.float64]


class Room(NamedTuple):
    """Memory of the kernel, enough for the longest text."""

    begin: Numbers
    """Of lines, paragraphs, words or n-grams; shape ``[words or lines + 1]``, as the next three."""
    end: Numbers
    characters: Numbers
    """Characters of all words before each."""
    hashes: Hashes
    """Of words, as the next; see `polynomial`."""
    powers: Hashes
    n_grams: Hashes
    """Hashes of n-grams."""
    counts: npt.NDArray[np.int32]
    slots: Slots
    blocks: Hashes
    """A Bloom filter: one number for each word at least, a power of two of them."""
    joined: Bytes
    """A text without its white space, and eight bytes more."""


@compiled
def most_items(part: TextPart, table: WordTable, rows: Numbers) -> int:
    """Return the most words of a row, or lines if a row may have more of them: bytes of white space and one."""
    most = 0
    for number in range(len(rows)):
        row, words = rows[number], 0
        lines = part.end[row] - part.begin[row] + 1
        for chunk in range(part.first[row], part.last[row]):
            entry = part.entry[chunk]
            words += table.chunks[entry, WORDS]
            lines -= table.chunks[entry, BYTES]
        most = max(most, words, lines)
    return most


@compiled
def judge_repetition(
    part: TextPart, table: WordTable, rows: Numbers, limits: RepetitionLimits, verdicts: Verdicts, room: Room
) -> None:
    """Fill the verdict of each row."""
    for number in range(len(rows)):
        row = rows[number]
        verdict = _judge_lines(part, table, row, limits, room)
        if verdict == KEEP:
            verdict = ASK if part.irregular[row] else _judge_words(part, table, row, limits, room)
        verdicts[number] = verdict


@compiled
def _judge_lines(part: TextPart, table: WordTable, row: int, limits: RepetitionLimits, room: Room) -> int:
    data, characters = part.data, part.characters[row]
    if part.begin[row] == part.end[row]:
        return EMPTY
    seed = table.seed[0]
    if limits.dup_para_frac or limits.dup_para_char_frac:
        count = 1
        room.begin[0] = room.end[0] = part.begin[row]
        if part.first[row] < part.last[row]:
            low, high = part.chunk_begin[part.first[row]], _end_of(part, table, part.last[row] - 1)
            count = _split(part, table, row, low, high, 2, room)
        elements, again = repeated(data, room.begin, room.end, count, room.slots, seed)
        if limits.dup_para_frac and elements / count > limits.dup_para_frac:
            return PARA
        if limits.dup_para_char_frac and again / characters > limits.dup_para_char_frac:
            return PARA_CHAR
    if limits.dup_line_frac or limits.dup_line_char_frac:
        count = _split(part, table, row, part.begin[row], part.end[row], 1, room)
        elements, again = repeated(data, room.begin, room.end, count, room.slots, seed)
        if limits.dup_line_frac and elements / count > limits.dup_line_frac:
            return LINE
        if limits.dup_line_char_frac and again / characters > limits.dup_line_char_frac:
            return LINE_CHAR
    return KEEP


@compiled
def _end_of(part: TextPart, table: WordTable, chunk: int) -> int:
    return int(part.chunk_begin[chunk] + table.chunks[part.entry[chunk], BYTES])


@compiled
def _split(part: TextPart, table: WordTable, row: int, low: int, high: int, least: int, room: Room) -> int:
    """Split a row's ``[low, high)``, which has all its chunks, at each run of ``least`` line feeds or more.

    Line feeds are between chunks, so nothing else is read. Returns how many pieces there are.
    """
    count, behind = 0, low
    room.begin[0] = low
    for chunk in range(part.first[row], part.last[row]):
        if part.gap[chunk] == WHITE:
            if chunk > part.first[row]:
                behind = _end_of(part, table, chunk - 1)
            count = _split_gap(part.data, behind, part.chunk_begin[chunk], least, count, room)
    if part.first[row] < part.last[row]:
        behind = _end_of(part, table, part.last[row] - 1)
    count = _split_gap(part.data, behind, high, least, count, room)
    room.end[count] = high
    return count + 1


@compiled
def _split_gap(data: Bytes, at: int, high: int, least: int, count: int, room: Room) -> int:
    """Put the pieces that end in ``[at, high)`` behind ``count`` others; return how many have ended."""
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
    return count


@compiled
def _judge_words(part: TextPart, table: WordTable, row: int, limits: RepetitionLimits, room: Room) -> int:
    words = _put_words(part, table, row, room)
    characters = part.characters[row]
    joined, copied = 0, False
    for rule in range(len(limits.top_n)):
        n, share = limits.top_n[rule], limits.top_share[rule]
        if n > words:
            continue
        joined = _hash_n_grams(words, n, joined, room)
        if _most_in_top(words, n, room) / characters > share:
            copied = copied or _copy_chunks(part, table, row, room)
            if _top(words, n, room) / characters > share:
                return TOP + rule
    for rule in range(len(limits.dup_n)):
        n, share = limits.dup_n[rule], limits.dup_share[rule]
        joined = _hash_n_grams(words, n, joined, room)
        if _most_duplicated(words, n, room) / characters > share:
            copied = copied or _copy_chunks(part, table, row, room)
            if _duplicated(words, n, room) / characters > share:
                return TOP + len(limits.top_n) + rule
    return KEEP


@compiled
def _copy_chunks(part: TextPart, table: WordTable, row: int, room: Room) -> bool:
    """Put the text without its white space into ``room.joined``; return True. Only comparing n-grams needs it."""
    place = 0
    for chunk in range(part.first[row], part.last[row]):
        begin = part.chunk_begin[chunk]
        for at in range(table.chunks[part.entry[chunk], BYTES]):
            room.joined[place + at] = part.data[begin + at]
        place += table.chunks[part.entry[chunk], BYTES]
    return True


@compiled
def _put_words(part: TextPart, table: WordTable, row: int, room: Room) -> int:
    """Put where the text's words are in ``room.joined`` and their hashes into ``room``; return their number."""
    count = place = characters = 0
    for chunk in range(part.first[row], part.last[row]):
        entry = part.entry[chunk]
        first = table.chunks[entry, FIRST_WORD]
        for word in range(first, first + table.chunks[entry, WORDS]):
            room.begin[count], room.characters[count] = place, characters
            room.hashes[count], room.powers[count] = table.words[word, HASH], table.words[word, POWER]
            place += word_bytes(table.words, word)
            characters += word_characters(table.words, word)
            count += 1
    room.begin[count], room.characters[count] = place, characters
    return count


@compiled
def _most_in_top(words: int, n: int, room: Room) -> int:
    """Return what `_top` gives at most: the same without looking whether n-grams of one hash value are the same."""
    size = slots_for(words)
    counts = room.slots
    counts[:size] = 0
    mask, most = np.uint64(size - 1), 0
    for first in range(words - n + 1):
        slot = _mixed(room.n_grams[first]) & mask
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
    """Return the characters, with a space between words, of all occurrences of the first most frequent n-gram."""
    size = slots_for(words)
    slots = room.slots
    slots[:size] = 0
    mask = np.uint64(size - 1)
    best = 0
    for first in range(words - n + 1):
        room.counts[first] = 0
        slot = _mixed(room.n_grams[first]) & mask
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
def _hash_n_grams(words: int, n: int, joined: int, room: Room) -> int:
    """Fill ``room.n_grams`` with the hash of the ``n`` words from each on, joined; return ``n``.

    There are those of ``joined`` words already, where this is more than 0 and not more than ``n``.
    """
    if joined > n or joined == 0:
        joined = 0
        for first in range(words):
            room.n_grams[first] = 0
    for length in range(joined, n):
        for first in range(words - length):
            word = first + length
            room.n_grams[first] = room.n_grams[first] * room.powers[word] + room.hashes[word]
    return n


@compiled
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _SHIFT)) * _FACTOR
    return value ^ (value >> _SHIFT)


@compiled
def _most_duplicated(words: int, n: int, room: Room) -> int:
    """Return what `_duplicated` gives at most: the characters of all words in n-grams that may have come before.

    A Bloom filter says whether they may, with three bits of one number for each n-gram, and n-grams overlap here.
    """
    size = slots_for(words) // 2
    blocks = room.blocks
    blocks[:size] = 0
    mask = np.uint64(size - 1)
    covered = again = 0
    for first in range(words - n + 1):
        value = _mixed(room.n_grams[first])
        bits = (_ONE << (value >> _BIT_PLACES[0])) | (_ONE << ((value >> _BIT_PLACES[1]) & _SIX_BITS))
        bits |= _ONE << ((value >> _BIT_PLACES[2]) & _SIX_BITS)
        block = value & mask
        if blocks[block] & bits == bits:
            again += room.characters[first + n] - room.characters[max(first, covered)]
            covered = first + n
        else:
            blocks[block] |= bits
    return again


@compiled
def _duplicated(words: int, n: int, room: Room) -> int:
    """Return the characters of the n-grams, words joined without a space, that came before; none overlap."""
    size = slots_for(words)
    slots = room.slots
    slots[:size] = 0
    mask = np.uint64(size - 1)
    first = again = 0
    while first < words - n + 1:
        slot = _mixed(room.n_grams[first]) & mask
        begin, length = room.begin[first], room.begin[first + n] - room.begin[first]
        found = False
        while slots[slot] and not found:
            other = slots[slot] - 1
            if room.n_grams[other] == room.n_grams[first]:
                place = room.begin[other]
                found = room.begin[other + n] - place == length
                found = found and equal_bytes(room.joined, begin, room.joined, place, length)
            if not found:
                slot = (slot + np.uint64(1)) & mask
        if found:
            again += room.characters[first + n] - room.characters[first]
            first += n
        else:
            slots[slot] = first + 1
            first += 1
    return again
