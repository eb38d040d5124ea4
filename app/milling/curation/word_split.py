"""`WordSplit`: texts become parts, whose words are known; one for all steps of a recipe.

A kernel says which chunks have other words beside other chunks. spaCy looks for its special cases in the words of the
whole text. One that would span two chunks, with one space between, is not applied, but keeps others from being found
within these chunks.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from operator import is_
from threading import RLock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .byte_strings import PADDING, polynomial
from .chunk_lookup import (
    AHEAD,
    BYTES,
    CHARACTERS,
    CHUNK_BEGINS_OPEN,
    CHUNK_ENDS_OPEN,
    CHUNK_ODD,
    CHUNK_REJOINED,
    FIRST_WORD,
    KEY,
    MOST_ENTRIES,
    WORD_ALPHABETIC,
    WORD_NO_SYMBOL,
    WORD_PUNCTUATION,
    WORD_SENTENCE_END,
    WORDS,
    WordTable,
    count_kinds,
    decode,
    emptied,
    empty_table,
    look_up,
    put_word,
    with_room,
)
from .chunk_words import HASH_START, HASH_STEP, Characters, cut_chunk, hash_of, is_in
from .chunked_text import SPACE, TextPart, find_chunks
from .compiled import compiled
from .english_rules import EnglishRules, english_rules, special_sequences
from .words import SYMBOLS


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


KEPT_PARTS: Final = 4
"""Parts whose words are kept for the next steps: two of a fetch (before and after ``c4_quality``) and as many of
another partition."""


class Located(NamedTuple):
    """Some of the texts that were asked for, in one part."""

    part: TextPart
    rows: npt.NDArray[np.int64]
    """Of the texts in the part."""
    indices: npt.NDArray[np.int64]
    """Of the texts among those that were asked for."""


class WordSplit:
    """Cuts texts into words as spaCy's blank English pipeline does, and remembers chunks and the latest parts.

    Whoever uses `locate`, `table` or `add` holds `lock` for as long as the parts are used: chunks may be forgotten by
    the next call.
    """

    def __init__(self, nlp: Any) -> None:
        """Take a blank English pipeline with a sentencizer.

        Raises SettingsError where its rules are not those that the kernels know.
        """
        sequences = special_sequences(nlp.tokenizer)
        self.rules: EnglishRules = english_rules(nlp, sequences.values())
        self.lock = RLock()
        self._nlp = nlp
        self._sentence_ends = frozenset(nlp.get_pipe("sentencizer").punct_chars)
        self._sequences = tuple(sequences)
        self._firsts = tuple({word for words in sequences.values() for word in words[:-1]})
        self._seconds = tuple({word for words in sequences.values() for word in words[1:]})
        self._seed = secrets.randbits(64) | 1
        self._parts: deque[tuple[list[str], TextPart]] = deque(maxlen=KEPT_PARTS)
        self._runs: dict[str, list[int]] = {}
        self._places: dict[int, tuple[int, TextPart]] = {}
        self._located: tuple[list[str], list[Located]] = ([], [])
        self.table: WordTable = empty_table(self._seed)

    def locate(self, texts: Sequence[str]) -> Iterator[Located]:
        """Return where the texts are, after making a part of those that are in none yet."""
        known = self._located[0]
        if len(texts) == len(known) and all(map(is_, texts, known)):
            yield from self._located[1]
            return
        located = list(self._find(texts))
        self._located = list(texts), located
        yield from located

    def _find(self, texts: Sequence[str]) -> Iterator[Located]:
        places = self._places
        new = [text for text in texts if id(text) not in places]
        if new:
            encoded = [text.encode() for text in new]
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            ends = np.cumsum(lengths)
            data = np.frombuffer(bytearray().join((*encoded, bytes(PADDING))), np.uint8)  # of the kernels' one type
            part = self.split(data, ends - lengths, ends, new, may_forget=len(new) == len(texts))
            self.add(new, part)
            if any(id(text) not in places for text in texts):  # they were in a part that had to go
                self._drop_parts()
                yield from self._find(texts)
                return
        found = [places[id(text)] for text in texts]
        rows = np.fromiter((row for row, _ in found), np.int64, len(found))
        owners = np.fromiter((id(part) for _, part in found), np.uint64, len(found))
        parts = {id(part): part for _, part in found}
        for owner, part in parts.items():
            indices = np.flatnonzero(owners == owner)
            yield Located(part, rows[indices], indices)

    def add(self, texts: list[str], part: TextPart) -> None:
        """Remember that the part's rows are these texts."""
        if len(self._parts) == KEPT_PARTS:
            for text in self._parts[0][0]:
                place = self._places.get(id(text))
                if place is not None and place[1] is self._parts[0][1]:
                    del self._places[id(text)]
        self._parts.append((texts, part))
        for row, text in enumerate(texts):
            self._places[id(text)] = row, part

    def replace(
        self, left: TextPart, rows: npt.NDArray[np.int64], texts: list[str], indices: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, str]]:
        """Yield what ``rows`` of ``left`` say, stripped, where it is another text, with ``indices[row]``.

        Remembers that these rows are these texts.
        """
        known: list[str] = []
        where: list[int] = []
        for row, text in zip(rows.tolist(), texts, strict=True):
            whole = left.data[left.begin[row] : left.end[row]].tobytes().decode()
            new = whole.strip()
            if new == text:
                continue
            if len(new) == len(whole):
                known.append(new)
                where.append(row)
            yield int(indices[row]), new
        picks = np.array(where, np.int64)
        characters = np.fromiter(map(len, known), np.int64, len(known))
        begin, end, first, last = left.begin[picks], left.end[picks], left.first[picks], left.last[picks]
        irregular = left.irregular[picks]
        shared = (left.data, begin, end, characters, first, last, irregular, left.chunk_begin, left.entry, left.gap)
        self.add(known, TextPart(*shared))

    def split(
        self,
        data: npt.NDArray[np.uint8],
        begin: npt.NDArray[np.int64],
        end: npt.NDArray[np.int64],
        texts: Sequence[str] | None = None,
        *,
        may_forget: bool = False,
    ) -> TextPart:
        """Cut ``data[begin:end]`` of each text into chunks, and learn the words of those that are new.

        Without ``texts``, ``part.characters`` is not filled. ``may_forget``: no other part is used any more.
        """
        room = int((end - begin).sum()) // 2 + len(begin) + 1
        last = np.empty(len(begin), np.int64)
        chunk_begin, chunk_end, gap = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
        longest = find_chunks(data, begin, end, last, chunk_begin, chunk_end, gap)
        count = int(last[-1]) if len(last) else 0
        chunk_begin, chunk_end, gap = chunk_begin[:count].copy(), chunk_end[:count], gap[:count].copy()
        if may_forget and self.table.used[0] > MOST_ENTRIES:
            self.forget()
        entry, unknown = np.empty(count, np.int32), np.empty(count, np.int32)
        scratch, ahead = np.empty((3, longest + 1), np.int32), np.empty((3, AHEAD), np.uint64)
        done = 0
        while True:
            table = self.table
            done, left = look_up(table, self.rules, data, chunk_begin, chunk_end, done, entry, unknown, scratch, ahead)
            self._ask_spacy(unknown[:left].tolist())
            if done == count:
                break
            size = int(chunk_end[done] - chunk_begin[done])
            self.table = with_room(table, 1, size, size)
        characters = np.fromiter(map(len, texts), np.int64, len(texts)) if texts is not None else np.zeros(0, np.int64)
        first = np.append([0], last[:-1])
        part = TextPart(
            data, begin, end, characters, first, last, np.zeros(len(begin), np.bool_), chunk_begin, entry, gap
        )
        runs = np.empty((count, 2), np.int64)
        around = np.empty(2 * self.rules.longest_sequence, np.uint64)
        found = find_runs(part, self.table, self.rules, scratch, around, runs)
        for first, behind in runs[:found].tolist():
            self._cut_together(part, first, behind)
        return part

    def forget(self) -> None:
        """Forget all chunks and parts."""
        self._drop_parts()
        self._runs.clear()
        self.table = emptied(self.table)

    def _drop_parts(self) -> None:
        self._located = [], []
        self._parts.clear()
        self._places.clear()

    def _cut_together(self, part: TextPart, first: int, behind: int) -> None:
        """Give the chunks ``[first, behind)``, which have one space between them, the words that they have together."""
        old = part.entry[first:behind].tolist()
        end = int(part.chunk_begin[behind - 1]) + int(self.table.chunks[old[-1], BYTES])
        text = part.data[part.chunk_begin[first] : end].tobytes().decode()
        entries = self._runs.get(text)
        if entries is None:
            self.table = with_room(self.table, len(old), 0, len(text))
            words = iter(self._words_of(text))
            entries = [self._twin(entry, words) for entry in old]
            self._runs[text] = entries
        part.entry[first:behind] = entries

    def _twin(self, entry: int, words: Iterator[tuple[str, bool]]) -> int:
        """Make another entry of the same chunk; its words are the next ones."""
        table = self.table
        twin = int(table.used[0])
        table.used[0] += 1
        for column in (table.chunks, table.flags, table.first_hash, table.last_hash):
            column[twin] = column[entry]
        table.hashes[twin] = 0
        own: list[tuple[str, bool]] = []
        missing = int(table.chunks[entry, CHARACTERS])
        while missing > 0:
            own.append(next(words))
            missing -= len(own[-1][0])
        self._put_words(twin, own)
        return twin

    def _ask_spacy(self, entries: list[int]) -> None:
        """Fill in the words of chunks that the kernel leaves to spaCy."""
        table = self.table
        for entry in entries:
            begin, size = int(table.chunks[entry, KEY]), int(table.chunks[entry, BYTES])
            chunk = table.keys[begin : begin + size].tobytes().decode()
            words = self._words_of(chunk)
            table.flags[entry] |= self._open_ends(chunk)
            if "".join(word for word, _ in words) == chunk:
                self._put_words(entry, words)
            else:
                table.flags[entry] |= CHUNK_ODD

    def _words_of(self, text: str) -> list[tuple[str, bool]]:
        """Return spaCy's words, and whether each is punctuation to it; IS_ALPHA, which it cannot hold, is not kept."""
        text = text.replace("IS_ALPHA", "IS_ALPHB")
        with self._nlp.memory_zone():
            return [(token.text, token.is_punct) for token in self._nlp.tokenizer(text)]

    def _put_words(self, entry: int, words: list[tuple[str, bool]]) -> None:
        table, at = self.table, int(self.table.used[2])
        table.chunks[entry, FIRST_WORD], table.chunks[entry, WORDS] = at, len(words)
        for word, is_punctuation in words:
            encoded = word.encode()
            data = np.frombuffer(bytearray(encoded + bytes(PADDING)), np.uint8)
            kinds = WORD_ALPHABETIC if any(map(str.isalpha, word)) else 0
            kinds |= WORD_NO_SYMBOL if any(character not in SYMBOLS for character in word) else 0
            kinds |= WORD_PUNCTUATION if is_punctuation else 0
            kinds |= WORD_SENTENCE_END if word in self._sentence_ends else 0
            value, power = polynomial(data, 0, len(encoded), table.seed[0])
            put_word(table, at, np.uint64(value), np.uint64(power), len(encoded), len(word), kinds)
            at += 1
        table.used[2] = at
        count_kinds(table, entry)

    def _open_ends(self, chunk: str) -> int:
        """Return a chunk's flags, some perhaps more than needed: then spaCy cuts the whole text."""
        flags = CHUNK_ENDS_OPEN if chunk.endswith(self._firsts) else 0
        flags |= CHUNK_BEGINS_OPEN if chunk.startswith(self._seconds) else 0
        return flags | (CHUNK_REJOINED if any(text in chunk for text in self._sequences) else 0)
