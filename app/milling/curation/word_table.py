"""The words of chunks that were met before: an open-addressing table for kernels."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .byte_strings import PADDING, Bytes
from .compiled import compiled

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

KEY, BYTES, CHARACTERS, FIRST_WORD, WORDS, FULL_WORDS, FULL_CHARACTERS, ALPHABETIC_WORDS = range(8)
"""Columns of ``chunks``: where the chunk's bytes begin in ``keys``, and how many they are; its characters; where its
words begin in ``words``, and how many they are; how many of these have `WORD_NO_SYMBOL`, and the characters of those;
how many have `WORD_ALPHABETIC`."""
HASH, POWER, SIZES = range(3)
"""Columns of ``words``: the two numbers of `polynomial`; and bytes, characters and ``WORD_…``, in 16 bits each."""

TABLE_ENTRIES: Final = 1 << 20
"""Room of a table; pages that nothing was written to take no memory. It grows where one part brings more."""
MOST_ENTRIES: Final = TABLE_ENTRIES * 3 // 4
"""Chunks that are remembered: with more, all are forgotten before the next part. 40 MB of code and docs in many
languages have 0.7 million, and the table takes some 150 MB then."""
_ENTRY_BYTES: Final = 16
"""Room for a chunk's bytes, and for its words: what such chunks have on average, and a bit more."""
_ENTRY_WORDS: Final = 3
_TAG: Final = np.uint64(0xFFFFFFFF00000000)
_ENTRY: Final = np.uint64(0xFFFFFFFF)
_SIXTEEN: Final = np.uint64(0xFFFF)


class WordTable(NamedTuple):
    """Chunks and their words. An entry is a chunk; its words stand one after the other."""

    slots: npt.NDArray[np.uint64]
    """The upper half of a hash, and an entry's number plus one; 0 where a place is free. At most half full."""
    hashes: npt.NDArray[np.uint64]
    """Of each entry; 0 for one that is in no slot, for it has the words of a chunk beside others."""
    chunks: npt.NDArray[np.int32]
    """Shape ``[entries, 8]``: the columns above."""
    flags: npt.NDArray[np.uint8]
    """``CHUNK_…`` of each entry."""
    first_hash: npt.NDArray[np.uint64]
    """`string_hash` of the first word, and of the last one, before spaCy puts words together; 0 where nobody knows."""
    last_hash: npt.NDArray[np.uint64]
    keys: Bytes
    """The chunks, and eight bytes more."""
    words: npt.NDArray[np.uint64]
    """Shape ``[words, 3]``: the columns above."""
    used: npt.NDArray[np.int64]
    """Shape ``[3]``: entries, bytes of keys, words."""
    seed: npt.NDArray[np.uint64]
    """Shape ``[1]``: of the hashes, odd, by chance in each process, so that nobody can make texts that collide."""


def empty_table(seed: int) -> WordTable:
    """Return a table without entries."""
    return _table(TABLE_ENTRIES, TABLE_ENTRIES * _ENTRY_BYTES, TABLE_ENTRIES * _ENTRY_WORDS, seed)


def emptied(table: WordTable) -> WordTable:
    """Return a table without entries: this one, if it has not grown."""
    if len(table.hashes) != TABLE_ENTRIES:
        return empty_table(int(table.seed[0]))
    table.slots[:] = 0
    table.used[:] = 0
    return table


def with_room(table: WordTable, entries: int, keys: int, words: int) -> WordTable:
    """Return the table, or one of the same entries, with room for so many more entries, bytes of keys, and words."""
    rooms = (len(table.hashes), len(table.keys) - PADDING, len(table.words))
    needed = [int(used) + more for used, more in zip(table.used, (entries, keys, words), strict=True)]
    if all(need <= room for need, room in zip(needed, rooms, strict=True)):
        return table
    one, two, three = (max(need, 2 * room) if need > room else room for need, room in zip(needed, rooms, strict=True))
    grown = _table(one, two, three, 1)
    for name in WordTable._fields:
        if name != "slots":
            old = getattr(table, name)
            getattr(grown, name)[: len(old)] = old
    fill_slots(grown)
    return grown


def _table(entries: int, keys: int, words: int, seed: int) -> WordTable:
    return WordTable(
        slots=np.zeros(1 << (2 * entries - 1).bit_length(), np.uint64),
        hashes=np.empty(entries, np.uint64),
        chunks=np.empty((entries, 8), np.int32),
        flags=np.empty(entries, np.uint8),
        first_hash=np.empty(entries, np.uint64),
        last_hash=np.empty(entries, np.uint64),
        keys=np.empty(keys + PADDING, np.uint8),
        words=np.empty((words, 3), np.uint64),
        used=np.zeros(3, np.int64),
        seed=np.array([seed], np.uint64),
    )


@compiled
def fill_slots(table: WordTable) -> None:
    """Fill the slots of all entries; all are free before."""
    mask = np.uint64(len(table.slots) - 1)
    for entry in range(table.used[0]):
        value = table.hashes[entry]
        if value != np.uint64(0):
            slot = value & mask
            while table.slots[slot] != np.uint64(0):
                slot = (slot + np.uint64(1)) & mask
            table.slots[slot] = slot_of(value, entry)


@compiled
def slot_of(value: np.uint64, entry: int) -> np.uint64:
    """Return what a slot holds for an entry with this hash."""
    return (value & _TAG) | np.uint64(entry + 1)


@compiled
def entry_of(slot: np.uint64) -> int:
    """Return the entry of what a slot holds."""
    return int(slot & _ENTRY) - 1


@compiled
def has_hash(slot: np.uint64, value: np.uint64) -> bool:
    """Return whether the upper half of a hash is that of what a slot holds."""
    return ((slot ^ value) & _TAG) == np.uint64(0)


@compiled
def put_word(
    table: WordTable, word: int, value: np.uint64, power: np.uint64, size: int, characters: int, flags: int
) -> None:
    """Fill the row of a word."""
    table.words[word, HASH], table.words[word, POWER] = value, power
    table.words[word, SIZES] = (
        np.uint64(size) | (np.uint64(characters) << np.uint64(16)) | (np.uint64(flags) << np.uint64(32))
    )


@compiled
def word_bytes(words: npt.NDArray[np.uint64], word: int) -> int:
    """Return the bytes of a word."""
    return int(words[word, SIZES] & _SIXTEEN)


@compiled
def word_characters(words: npt.NDArray[np.uint64], word: int) -> int:
    """Return the characters of a word."""
    return int((words[word, SIZES] >> np.uint64(16)) & _SIXTEEN)


@compiled
def word_flags(words: npt.NDArray[np.uint64], word: int) -> int:
    """Return the ``WORD_…`` of a word."""
    return int(words[word, SIZES] >> np.uint64(32))


@compiled
def count_kinds(table: WordTable, entry: int) -> None:
    """Count the entry's words of each kind."""
    full = characters = alphabetic = 0
    first = table.chunks[entry, FIRST_WORD]
    for word in range(first, first + table.chunks[entry, WORDS]):
        flags = word_flags(table.words, word)
        alphabetic += flags & WORD_ALPHABETIC
        if flags & WORD_NO_SYMBOL:
            full += 1
            characters += word_characters(table.words, word)
    table.chunks[entry, FULL_WORDS], table.chunks[entry, FULL_CHARACTERS] = full, characters
    table.chunks[entry, ALPHABETIC_WORDS] = alphabetic
