"""Finding chunks in the `WordTable`, and learning new ones: kernels. A chunk is found by comparing its bytes."""

from typing import Final

import numpy as np
import numpy.typing as npt

from .byte_strings import PADDING, Bytes, eight_bytes, equal_bytes, hash_bytes, polynomial
from .chunk_words import NOTHING_TO_JOIN, cut_chunk, rejoin, special_case
from .code_points import LEFT_TO_SPACY, Characters, hash_of, is_in
from .compiled import compiled
from .english_rules import ALPHABETIC, PUNCTUATION, SENTENCE_END, SYMBOL, EnglishRules
from .word_table import (
    BYTES,
    CHARACTERS,
    CHUNK_BEGINS_OPEN,
    CHUNK_ENDS_OPEN,
    CHUNK_ODD,
    CHUNK_REJOINED,
    FIRST_WORD,
    KEY,
    WORD_ALPHABETIC,
    WORD_NO_SYMBOL,
    WORD_PUNCTUATION,
    WORD_SENTENCE_END,
    WORDS,
    WordTable,
    count_kinds,
    entry_of,
    has_hash,
    put_word,
    slot_of,
)

AHEAD: Final = 32
"""Chunks that are looked for together: more reads than a core has under way at once."""
BROKEN_NUMBER: Final = int.from_bytes(b"IS_ALPHA", "little")


@compiled
def look_up(
    table: WordTable,
    rules: EnglishRules,
    data: Bytes,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    done: int,
    entries: npt.NDArray[np.int32],
    unknown: npt.NDArray[np.int32],
    scratch: npt.NDArray[np.int32],
    ahead: npt.NDArray[np.uint64],
) -> tuple[int, int]:
    """Find the entries of chunks ``data[begin:end]``, from number ``done`` on, making those that are new.

    ``entries`` gets them. ``unknown`` gets the new entries whose words only spaCy knows. ``scratch`` has the shape
    ``[3, bytes of the longest chunk]``, ``ahead`` the shape ``[3, AHEAD]``. Returns how many chunks are done, not all
    where the table is full, and how many entries are in ``unknown``.
    """
    mask = np.uint64(len(table.slots) - 1)
    left = 0
    entry_room, key_room, word_room = len(table.hashes), len(table.keys) - PADDING, len(table.words)
    for number in range(done, len(begins)):
        at = (number - done) % AHEAD
        if at == 0:
            _look_ahead(table, data, begins[number : number + AHEAD], ends[number : number + AHEAD], ahead)
        begin, size = begins[number], ends[number] - begins[number]
        value = ahead[0, at]
        slot = value & mask
        found = -1
        while table.slots[slot] != np.uint64(0):
            if has_hash(table.slots[slot], value):
                entry = entry_of(table.slots[slot])
                if table.chunks[entry, BYTES] == size:
                    if equal_bytes(data, begin, table.keys, table.chunks[entry, KEY], size):
                        found = entry
                        break
            slot = (slot + np.uint64(1)) & mask
        if found < 0:
            found = table.used[0]
            if found == entry_room or table.used[1] + size > key_room or table.used[2] + size > word_room:
                return number, left
            table.slots[slot] = slot_of(value, found)
            table.hashes[found] = value
            if not _learn(table, rules, data, begin, size, scratch):
                unknown[left] = found
                left += 1
        entries[number] = found
    return len(begins), left


@compiled
def _look_ahead(
    table: WordTable,
    data: Bytes,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    ahead: npt.NDArray[np.uint64],
) -> None:
    """Put the hashes of chunks into ``ahead[0]``, and read what `look_up` will of each, so that it is in the caches.

    The reads of one kind do not wait for each other here. In `look_up` each waits for the one before it.
    """
    mask, seed = np.uint64(len(table.slots) - 1), table.seed[0]
    for at in range(len(begins)):
        ahead[0, at] = hash_bytes(data, begins[at], ends[at], seed)
    for at in range(len(begins)):
        ahead[1, at] = table.slots[ahead[0, at] & mask]
    for at in range(len(begins)):
        slot = ahead[1, at]
        ahead[2, at] = table.chunks[entry_of(slot), KEY] if slot else 0
    for at in range(len(begins)):
        ahead[1, at] = table.keys[ahead[2, at]]


@compiled
def _learn(
    table: WordTable, rules: EnglishRules, data: Bytes, begin: int, size: int, scratch: npt.NDArray[np.int32]
) -> bool:
    """Make the next entry; return whether its words are known."""
    entry, key = table.used[0], table.used[1]
    table.used[0] += 1
    table.used[1] += size
    table.chunks[entry, KEY], table.chunks[entry, BYTES] = key, size
    for at in range(size):
        table.keys[key + at] = data[begin + at]
    table.flags[entry] = CHUNK_ODD if _has_broken(data, begin, begin + size) else 0
    table.first_hash[entry] = table.last_hash[entry] = 0
    table.chunks[entry, FIRST_WORD], table.chunks[entry, WORDS] = table.used[2], 0
    text, ends = scratch[0], scratch[1]
    characters = decode(data, begin, begin + size, text)
    table.chunks[entry, CHARACTERS] = characters
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
    place, low = key, 0
    for number in range(count):
        flags = _flags(rules.classes, text, low, ends[number])
        behind = place
        for at in range(low, ends[number]):
            behind += _bytes_of(text[at])
        value, power = polynomial(table.keys, place, behind, table.seed[0])
        put_word(table, table.used[2] + number, value, power, behind - place, ends[number] - low, flags)
        place, low = behind, ends[number]
    table.chunks[entry, WORDS] = count
    table.used[2] += count
    count_kinds(table, entry)
    return True


@compiled
def _flags(classes: npt.NDArray[np.uint16], text: Characters, low: int, high: int) -> int:
    """Return the ``WORD_…`` of a word."""
    all_of, any_not, any_of = 0xFFFF, False, 0
    for at in range(low, high):
        kind = classes[text[at]]
        all_of &= kind
        any_of |= kind
        any_not |= (kind & SYMBOL) == 0
    flags = WORD_ALPHABETIC if any_of & ALPHABETIC else 0
    flags |= WORD_NO_SYMBOL if any_not else 0
    flags |= WORD_PUNCTUATION if all_of & PUNCTUATION else 0
    return flags | (WORD_SENTENCE_END if high - low == 1 and all_of & SENTENCE_END else 0)


@compiled
def _has_broken(data: Bytes, begin: int, end: int) -> bool:
    """Return whether the word is there that spaCy cannot hold (`milling.curation.words`)."""
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
