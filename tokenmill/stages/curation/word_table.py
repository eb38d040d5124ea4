"""The words of chunks that were met before: an open-addressing table for kernels, exact by comparing bytes."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.stages.curation.byte_strings import PADDING, Bytes, eight_bytes, equal_bytes, hash_bytes, polynomial
from tokenmill.stages.curation.chunk_words import NOTHING_TO_JOIN, cut_chunk, rejoin, special_case
from tokenmill.stages.curation.code_points import LEFT_TO_SPACY, Characters, hash_of, is_in
from tokenmill.stages.curation.compiled import compiled
from tokenmill.stages.curation.english_rules import (
    ALPHABETIC,
    PUNCTUATION,
    SENTENCE_END,
    SYMBOL,
    EnglishRules,
)

WORD_ALPHABETIC: Final = 1
"""A character of the word is alphabetic."""
WORD_NO_SYMBOL: Final = 2
"""A character of the word is none of `SYMBOLS`."""
WORD_PUNCTUATION: Final = 4
"""spaCy's ``is_punct``."""
WORD_SENTENCE_END: Final = 8
"""The word is one of the sentencizer's characters."""

CHUNK_ENDS_OPEN: Final = 1
"""The last word may begin a sequence that spaCy puts together, across a space."""
CHUNK_BEGINS_OPEN: Final = 2
"""The first word may continue such a sequence."""
CHUNK_REJOINED: Final = 4
"""spaCy may have put words of the chunk together."""
CHUNK_ODD: Final = 8
"""The words are not the chunk's characters, one after the other."""

BROKEN_NUMBER: Final = int.from_bytes(b"IS_ALPHA", "little")

MOST_ENTRIES: Final = 1 << 20
"""Chunks that are remembered; when a new part may bring more, all are forgotten. 60 MB of code and docs have 0.9
million. All that the table holds is some 90 MB then."""


class WordTable(NamedTuple):
    """Chunks and their words. An entry is a chunk; its words stand one after the other."""

    slots: npt.NDArray[np.int32]
    """Entries by hash, plus one; 0 where a place is free. A power of two, at most half full."""
    hashes: npt.NDArray[np.uint64]
    key_begin: npt.NDArray[np.int64]
    key_size: npt.NDArray[np.int32]
    """Bytes of each chunk."""
    characters: npt.NDArray[np.int32]
    first_word: npt.NDArray[np.int32]
    words: npt.NDArray[np.int32]
    """How many words each chunk has."""
    full_words: npt.NDArray[np.int32]
    """How many of them have `WORD_NO_SYMBOL`, and the characters of these."""
    full_characters: npt.NDArray[np.int32]
    alphabetic: npt.NDArray[np.int32]
    """How many of them have `WORD_ALPHABETIC`."""
    first_hash: npt.NDArray[np.uint64]
    """`string_hash` of the first word, and of the last one, before spaCy puts words together; 0 where nobody knows."""
    last_hash: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint8]
    """``CHUNK_…``."""
    keys: Bytes
    word_hash: npt.NDArray[np.uint64]
    """`polynomial` of each word."""
    word_power: npt.NDArray[np.uint64]
    """The power that belongs to it."""
    word_bytes: npt.NDArray[np.int32]
    word_characters: npt.NDArray[np.int32]
    word_flags: npt.NDArray[np.uint8]
    """``WORD_…``."""
    used: npt.NDArray[np.int64]
    """Shape ``[3]``: entries, bytes of keys, words."""
    seed: npt.NDArray[np.uint64]
    """Shape ``[1]``: of the hashes, odd, by chance in each process, so that nobody can make texts that collide."""


def empty_table(entries: int, keys: int, words: int, seed: int) -> WordTable:
    """Return a table with room for so many entries, bytes of keys and words."""
    return WordTable(
        slots=np.zeros(1 << (2 * entries - 1).bit_length(), np.int32),
        hashes=np.empty(entries, np.uint64),
        key_begin=np.empty(entries, np.int64),
        key_size=np.empty(entries, np.int32),
        characters=np.empty(entries, np.int32),
        first_word=np.empty(entries, np.int32),
        words=np.empty(entries, np.int32),
        full_words=np.empty(entries, np.int32),
        full_characters=np.empty(entries, np.int32),
        alphabetic=np.empty(entries, np.int32),
        first_hash=np.empty(entries, np.uint64),
        last_hash=np.empty(entries, np.uint64),
        flags=np.empty(entries, np.uint8),
        keys=np.empty(keys + PADDING, np.uint8),
        word_hash=np.empty(words, np.uint64),
        word_power=np.empty(words, np.uint64),
        word_bytes=np.empty(words, np.int32),
        word_characters=np.empty(words, np.int32),
        word_flags=np.empty(words, np.uint8),
        used=np.zeros(3, np.int64),
        seed=np.array([seed], np.uint64),
    )


@compiled
def look_up(
    table: WordTable,
    rules: EnglishRules,
    data: Bytes,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    entries: npt.NDArray[np.int32],
    unknown: npt.NDArray[np.int32],
    scratch: npt.NDArray[np.int32],
) -> int:
    """Find the entry of each chunk ``data[begin:end]``, making those that are new.

    ``entries`` gets them. ``unknown`` gets the new entries whose words only spaCy knows, and their number is returned.
    ``scratch`` has the shape ``[3, bytes of the longest chunk]``. The table has room for all.
    """
    mask = np.uint64(len(table.slots) - 1)
    seed, left = table.seed[0], 0
    for number in range(len(begins)):
        begin, size = begins[number], ends[number] - begins[number]
        value = hash_bytes(data, begin, ends[number], seed)
        slot = value & mask
        found = -1
        while table.slots[slot]:
            entry = table.slots[slot] - 1
            if table.hashes[entry] == value and table.key_size[entry] == size:
                if equal_bytes(data, begin, table.keys, table.key_begin[entry], size):
                    found = entry
                    break
            slot = (slot + np.uint64(1)) & mask
        if found < 0:
            found = table.used[0]
            table.slots[slot] = found + 1
            table.hashes[found] = value
            if not _learn(table, rules, data, begin, size, scratch):
                unknown[left] = found
                left += 1
        entries[number] = found
    return left


@compiled
def _learn(
    table: WordTable, rules: EnglishRules, data: Bytes, begin: int, size: int, scratch: npt.NDArray[np.int32]
) -> bool:
    """Make the next entry; return whether its words are known."""
    entry, key = table.used[0], table.used[1]
    table.used[0] += 1
    table.used[1] += size
    table.key_begin[entry], table.key_size[entry] = key, size
    for at in range(size):
        table.keys[key + at] = data[begin + at]
    table.flags[entry] = CHUNK_ODD if _has_broken(data, begin, begin + size) else 0
    table.first_hash[entry] = table.last_hash[entry] = 0
    table.first_word[entry], table.words[entry] = table.used[2], 0
    text, ends = scratch[0], scratch[1]
    characters = decode(data, begin, begin + size, text)
    table.characters[entry] = characters
    count = cut_chunk(rules, text, characters, ends, scratch[2])
    if count == LEFT_TO_SPACY:
        return False
    table.first_hash[entry] = hash_of(text, 0, ends[0])
    table.last_hash[entry] = hash_of(text, ends[count - 2] if count > 1 else 0, characters)
    table.flags[entry] |= CHUNK_ENDS_OPEN if is_in(rules.firsts, table.last_hash[entry]) else 0
    table.flags[entry] |= CHUNK_BEGINS_OPEN if is_in(rules.seconds, table.first_hash[entry]) else 0
    joined = rejoin(rules, text, ends, count, scratch[2])
    if joined != NOTHING_TO_JOIN:
        if special_case(rules.special, text, 0, characters) < 0:
            table.flags[entry] |= CHUNK_REJOINED
        if joined == LEFT_TO_SPACY:
            return False
        count = joined
    first, place, low = table.used[2], key, 0
    for number in range(count):
        high = ends[number]
        all_of, any_not, any_of = 0xFFFF, False, 0
        bytes_of = 0
        for at in range(low, high):
            kind = rules.classes[text[at]]
            all_of &= kind
            any_of |= kind
            any_not |= (kind & SYMBOL) == 0
            bytes_of += _bytes_of(text[at])
        flags = WORD_ALPHABETIC if any_of & ALPHABETIC else 0
        flags |= WORD_NO_SYMBOL if any_not else 0
        flags |= WORD_PUNCTUATION if all_of & PUNCTUATION else 0
        flags |= WORD_SENTENCE_END if high - low == 1 and all_of & SENTENCE_END else 0
        value, power = polynomial(table.keys, place, place + bytes_of, table.seed[0])
        table.word_hash[first + number], table.word_power[first + number] = value, power
        table.word_bytes[first + number] = bytes_of
        table.word_characters[first + number] = high - low
        table.word_flags[first + number] = flags
        place += bytes_of
        low = high
    table.words[entry] = count
    table.used[2] += count
    count_kinds(table, entry)
    return True


@compiled
def count_kinds(table: WordTable, entry: int) -> None:
    """Count the entry's words of each kind."""
    full = characters = alphabetic = 0
    for word in range(table.first_word[entry], table.first_word[entry] + table.words[entry]):
        flags = table.word_flags[word]
        alphabetic += flags & WORD_ALPHABETIC
        if flags & WORD_NO_SYMBOL:
            full += 1
            characters += table.word_characters[word]
    table.full_words[entry], table.full_characters[entry], table.alphabetic[entry] = full, characters, alphabetic


@compiled
def _has_broken(data: Bytes, begin: int, end: int) -> bool:
    """Return whether the word is there that spaCy cannot hold (`tokenmill.stages.curation.words`)."""
    word = np.uint64(BROKEN_NUMBER)
    for at in range(begin, end - 7):
        if data[at] == 0x49 and eight_bytes(data, at) == word:
            return True
    return False


@compiled
def _bytes_of(character: int) -> int:
    return 1 + (character >= 0x80) + (character >= 0x800) + (character >= 0x10000)


@compiled
def decode(data: Bytes, begin: int, end: int, text: Characters) -> int:
    """Decode ``data[begin:end]``, which is valid UTF-8, into ``text``; return the number of characters."""
    count, at = 0, begin
    while at < end:
        lead = np.int32(data[at])
        if lead < 0x80:
            text[count] = lead
            at += 1
        elif lead < 0xE0:
            text[count] = ((lead & 0x1F) << 6) | (data[at + 1] & 0x3F)
            at += 2
        elif lead < 0xF0:
            text[count] = ((lead & 0x0F) << 12) | (np.int32(data[at + 1] & 0x3F) << 6) | (data[at + 2] & 0x3F)
            at += 3
        else:
            high = ((lead & 0x07) << 18) | (np.int32(data[at + 1] & 0x3F) << 12)
            text[count] = high | (np.int32(data[at + 2] & 0x3F) << 6) | (data[at + 3] & 0x3F)
            at += 4
        count += 1
    return count
