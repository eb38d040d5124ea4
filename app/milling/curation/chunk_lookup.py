"""Texts of a part of a fetch, cut into chunks at white space; and the words of chunks that were met before, in a table.

Kernels find chunks in the open-addressing table, by comparing their bytes, and learn new ones. All steps of a recipe
share both.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .chunk_words import (
    ALPHABETIC,
    LEFT_TO_SPACY,
    NOTHING_TO_JOIN,
    PUNCTUATION,
    SENTENCE_END,
    SYMBOL,
    Characters,
    EnglishRules,
    Hashes,
    cut_chunk,
    hash_of,
    rejoin,
    special_case,
)
from .compiled import PADDING, Bytes, Numbers, compiled, eight_bytes, equal_bytes, hash_bytes, polynomial
from .words import CHUNK_CHARACTERS

FIRST, SPACE, WHITE, CUT = range(4)
"""What stands before a chunk: nothing, at the text's beginning; exactly one space; other white space, for spaCy a word
of its own, which is stripped later; nothing, where it is the next piece of a long one (`CHUNK_CHARACTERS`)."""
_SPACE: Final = ord(" ")


class TextPart(NamedTuple):
    """Texts, one after the other, and their chunks: what stands between white space (`str.split`)."""

    data: Bytes
    """All texts in UTF-8, and eight bytes more."""
    begin: Numbers
    """Shape ``[texts]``, as the next four."""
    end: Numbers
    characters: Numbers
    first: Numbers
    """The text's chunks are ``[first, last)``."""
    last: Numbers
    irregular: npt.NDArray[np.bool_]
    """Whether the text's words may be others than those of its chunks, one after the other."""
    chunk_begin: Numbers
    """Shape ``[chunks]``, as the next two."""
    entry: npt.NDArray[np.int32]
    """Of each chunk in the `WordTable`."""
    gap: Bytes
    """What stands before each chunk: `FIRST`, `SPACE`, `WHITE` or `CUT`."""


@compiled
def white_space(data: Bytes, at: int) -> int:
    """Return the length of the white space character (`str.isspace`) that begins at ``at``; 0 if there is none."""
    lead = data[at]
    if lead <= 0x20:
        return 1 if 9 <= lead <= 13 or lead >= 28 else 0
    if lead < 0xC2 or lead > 0xE3:
        return 0
    if lead == 0xC2:
        return 2 if data[at + 1] in (0x85, 0xA0) else 0
    second, third = data[at + 1], data[at + 2]
    if lead == 0xE2:
        if second == 0x80:
            return 3 if third <= 0x8A or third in (0xA8, 0xA9, 0xAF) else 0
        return 3 if second == 0x81 and third == 0x9F else 0
    if lead == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0
    return 3 if lead == 0xE3 and second == 0x80 and third == 0x80 else 0


@compiled
def line_break(data: Bytes, at: int, end: int) -> int:
    r"""Return the length of the line break (`str.splitlines`, ``\r\n`` is one) at ``at``; 0 if there is none."""
    lead = data[at]
    if lead < 0x20:
        if lead == 0x0D and at + 1 < end and data[at + 1] == 0x0A:
            return 2
        return 1 if 0x0A <= lead <= 0x0D or 0x1C <= lead <= 0x1E else 0
    if lead == 0xC2:
        return 2 if data[at + 1] == 0x85 else 0
    if lead == 0xE2 and data[at + 1] == 0x80:
        return 3 if data[at + 2] in (0xA8, 0xA9) else 0
    return 0


@compiled
def count_characters(data: Bytes, begin: int, end: int) -> int:
    """Return how many characters ``data[begin:end]`` has."""
    count = 0
    for at in range(begin, end):
        count += (data[at] & 0xC0) != 0x80
    return count


@compiled
def find_chunks(
    data: Bytes, begin: Numbers, end: Numbers, last: Numbers, chunk_begin: Numbers, chunk_end: Numbers, gap: Bytes
) -> int:
    """Cut texts at white space; fill ``last`` (of each text) and the chunks, and return the longest one's bytes."""
    count = longest = 0
    for text in range(len(begin)):
        at, stop = begin[text], end[text]
        kind = FIRST
        while at < stop:
            start = at
            while at < stop:
                length = white_space(data, at)
                if length == 0:
                    break
                at += length
            if at > start:
                kind = SPACE if kind == CUT and at == start + 1 and data[start] == _SPACE else WHITE
            if at >= stop:
                break
            chunk_begin[count], gap[count] = at, kind
            start, characters = at, 0
            while at < stop:
                byte = data[at]
                if byte <= _SPACE or byte > 0x7F:
                    if white_space(data, at):
                        break
                    characters += (byte & 0xC0) != 0x80
                else:
                    characters += 1
                if characters > CHUNK_CHARACTERS:
                    break
                at += 1
            chunk_end[count] = at
            longest = max(longest, at - start)
            kind = CUT
            count += 1
        last[text] = count
    return longest


@compiled
def hash_texts(part: TextPart, rows: Numbers, keys: Hashes) -> None:
    """Fill the hash of each row's text, the same one in every process."""
    for number in range(len(rows)):
        keys[number] = hash_bytes(part.data, part.begin[rows[number]], part.end[rows[number]], np.uint64(0))


WORD_ALPHABETIC, WORD_NO_SYMBOL, WORD_PUNCTUATION, WORD_SENTENCE_END = 1, 2, 4, 8
"""Of a word: a character is alphabetic, or none of `SYMBOLS`; spaCy's ``is_punct``; it is one of the sentencizer's."""
CHUNK_REJOINED, CHUNK_ODD = 1, 2
"""spaCy may have put words of the chunk together; the words are not the chunk's characters, one after the other."""

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

    slots: Hashes
    """The upper half of a hash, and an entry's number plus one; 0 where a place is free. At most half full."""
    hashes: Hashes
    """Of each entry; 0 for one that is in no slot, for it has the words of a chunk among others."""
    chunks: npt.NDArray[np.int32]
    """Shape ``[entries, 8]``: the columns above."""
    flags: Bytes
    """``CHUNK_…`` of each entry."""
    first_hash: Hashes
    """`string_hash` of the first word, and of the last one, before spaCy puts words together; 0: not known."""
    last_hash: Hashes
    keys: Bytes
    """The chunks, and eight bytes more."""
    words: Hashes
    """Shape ``[words, 3]``: the columns above."""
    used: Numbers
    """Shape ``[3]``: entries, bytes of keys, words."""
    seed: Hashes
    """Shape ``[1]``: of the hashes, odd, by chance in each process, so that texts cannot be made to collide."""


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
def word_bytes(words: Hashes, word: int) -> int:
    """Return the bytes of a word."""
    return int(words[word, SIZES] & _SIXTEEN)


@compiled
def word_characters(words: Hashes, word: int) -> int:
    """Return the characters of a word."""
    return int((words[word, SIZES] >> np.uint64(16)) & _SIXTEEN)


@compiled
def word_flags(words: Hashes, word: int) -> int:
    """Return the ``WORD_…`` of a word."""
    return int(words[word, SIZES] >> np.uint64(32))


AHEAD: Final = 32
"""Chunks that are looked for together: more reads than a core has under way at once."""
BROKEN_NUMBER: Final = int.from_bytes(b"IS_ALPHA", "little")


@compiled
def look_up(
    table: WordTable,
    rules: EnglishRules,
    data: Bytes,
    begins: Numbers,
    ends: Numbers,
    done: int,
    entries: npt.NDArray[np.int32],
    unknown: npt.NDArray[np.int32],
    scratch: npt.NDArray[np.int32],
    ahead: Hashes,
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
def _look_ahead(table: WordTable, data: Bytes, begins: Numbers, ends: Numbers, ahead: Hashes) -> None:
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
    table.chunks[entry, WORDS] = 0
    text, ends = scratch[0], scratch[1]
    characters = decode(data, begin, begin + size, text)
    table.chunks[entry, CHARACTERS] = characters
    count = cut_chunk(rules, text, characters, ends, scratch[2])
    if count == LEFT_TO_SPACY:
        return False
    table.first_hash[entry] = hash_of(text, 0, ends[0])
    table.last_hash[entry] = hash_of(text, ends[count - 2] if count > 1 else 0, characters)
    joined = rejoin(rules, text, ends, count, scratch[2])
    if joined != NOTHING_TO_JOIN:
        if special_case(rules.special, text, 0, characters) < 0:
            table.flags[entry] |= CHUNK_REJOINED
        if joined == LEFT_TO_SPACY:
            return False
        count = joined
    put_words(table, rules.classes, entry, text, ends, count)
    return True


@compiled
def put_words(
    table: WordTable, classes: npt.NDArray[np.uint16], entry: int, text: Characters, ends: Characters, count: int
) -> None:
    """Give an entry its words: the first begins where ``text``, its chunk, does; ``ends`` are where each ends."""
    first, place, low = table.used[2], table.chunks[entry, KEY], 0
    full = full_characters = alphabetic = 0
    for number in range(count):
        flags, characters = _flags(classes, text, low, ends[number]), ends[number] - low
        behind = place
        for at in range(low, ends[number]):
            behind += _bytes_of(text[at])
        word = first + number
        table.words[word, HASH], table.words[word, POWER] = polynomial(table.keys, place, behind, table.seed[0])
        table.words[word, SIZES] = (
            np.uint64(behind - place) | (np.uint64(characters) << np.uint64(16)) | (np.uint64(flags) << np.uint64(32))
        )
        alphabetic += flags & WORD_ALPHABETIC
        if flags & WORD_NO_SYMBOL:
            full += 1
            full_characters += characters
        place, low = behind, ends[number]
    table.chunks[entry, FIRST_WORD], table.chunks[entry, WORDS] = first, count
    table.chunks[entry, FULL_WORDS], table.chunks[entry, FULL_CHARACTERS] = full, full_characters
    table.chunks[entry, ALPHABETIC_WORDS] = alphabetic
    table.used[2] += count


@compiled
def _flags(classes: npt.NDArray[np.uint16], text: Characters, low: int, high: int) -> int:
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
