"""Which chunks have other words beside other chunks: a kernel.

spaCy looks for its special cases in the words of the whole text. One that would span two chunks, with one space
between, is not applied, but keeps others from being found within these chunks.
"""

import numpy as np
import numpy.typing as npt

from .chunk_words import cut_chunk
from .code_points import HASH_START, HASH_STEP, Characters, hash_of, is_in
from .compiled import compiled
from .english_rules import EnglishRules
from .learning import decode
from .part import SPACE, TextPart
from .word_table import (
    BYTES,
    CHUNK_BEGINS_OPEN,
    CHUNK_ENDS_OPEN,
    CHUNK_ODD,
    CHUNK_REJOINED,
    WordTable,
)


@compiled
def find_runs(
    part: TextPart,
    table: WordTable,
    rules: EnglishRules,
    scratch: Characters,
    around: npt.NDArray[np.uint64],
    runs: npt.NDArray[np.int64],
) -> int:
    """Find chunks whose words depend on those beside them, in runs of ``[first, last)``; return how many there are.

    No sequence reaches over a run's ends, so its words depend on nothing else. ``scratch`` has the shape
    ``[3, bytes of the longest chunk]``, ``around`` room for twice the words of the longest sequence, ``runs`` the shape
    ``[chunks, 2]``.
    """
    count = 0
    for text in range(len(part.begin)):
        odd, chunk, last = False, part.first[text], part.last[text]
        free = chunk
        while chunk < last:
            flags = table.flags[part.entry[chunk]]
            odd |= (flags & CHUNK_ODD) != 0
            if flags & CHUNK_REJOINED:
                first = chunk
                while first > free and _is_spanned(part, table, rules, first, last, scratch, around):
                    first -= 1
                while chunk + 1 < last and _is_spanned(part, table, rules, chunk + 1, last, scratch, around):
                    chunk += 1
                    odd |= (table.flags[part.entry[chunk]] & CHUNK_ODD) != 0
                free = chunk + 1
                if free - first > 1:
                    runs[count, 0], runs[count, 1] = first, free
                    count += 1
            chunk += 1
        part.irregular[text] = odd
    return count


@compiled
def _is_pair(table: WordTable, rules: EnglishRules, one: int, other: int) -> bool:
    """Return whether the last word of one chunk and the first one of the other are beside each other in a sequence."""
    last, first = table.last_hash[one], table.first_hash[other]
    if last == np.uint64(0) or first == np.uint64(0):
        return True
    value = ((HASH_START ^ last) * HASH_STEP ^ first) * HASH_STEP
    return is_in(rules.pairs, value if value != np.uint64(0) else np.uint64(1))


@compiled
def _is_spanned(
    part: TextPart,
    table: WordTable,
    rules: EnglishRules,
    chunk: int,
    last: int,
    scratch: Characters,
    around: npt.NDArray[np.uint64],
) -> bool:
    """Return whether one of spaCy's sequences may have words before ``chunk``, in the same text, and words in it."""
    one, other = part.entry[chunk - 1], part.entry[chunk]
    if part.gap[chunk] != SPACE or not table.flags[one] & CHUNK_ENDS_OPEN:
        return False
    if not table.flags[other] & CHUNK_BEGINS_OPEN or not _is_pair(table, rules, one, other):
        return False
    room = rules.longest_sequence - 1
    low = high = room
    at = chunk - 1
    while low > 0:
        count = _cut(part, table, rules, at, scratch)
        if count < 0:
            return True
        for word in range(count - 1, max(-1, count - 1 - low), -1):
            low -= 1
            around[low] = _word_hash(scratch, word)
        if part.gap[at] != SPACE:
            break
        at -= 1
    at = chunk
    while high < 2 * room:
        count = _cut(part, table, rules, at, scratch)
        if count < 0:
            return True
        for word in range(min(count, 2 * room - high)):
            around[high] = _word_hash(scratch, word)
            high += 1
        at += 1
        if at == last or part.gap[at] != SPACE:
            break
    for first in range(low, room):
        value = HASH_START
        for number in range(first, high):
            value = (value ^ around[number]) * HASH_STEP
            if number >= room and is_in(rules.patterns, value):
                return True
            if not is_in(rules.beginnings, value):
                break
    return False


@compiled
def _cut(part: TextPart, table: WordTable, rules: EnglishRules, chunk: int, scratch: Characters) -> int:
    """Cut a chunk into ``scratch`` before anything is put together; return the number of words, negative if unknown."""
    begin = part.chunk_begin[chunk]
    characters = decode(part.data, begin, begin + table.chunks[part.entry[chunk], BYTES], scratch[0])
    return cut_chunk(rules, scratch[0], characters, scratch[1], scratch[2])


@compiled
def _word_hash(scratch: Characters, word: int) -> np.uint64:
    return hash_of(scratch[0], scratch[1][word - 1] if word else 0, scratch[1][word])
