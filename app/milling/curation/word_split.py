"""`WordSplit`: texts become parts, whose words are known; one for all steps of a recipe.

A kernel says which chunks have other words next to other chunks. spaCy looks for its special cases in the words of the
whole text. One that would span two chunks, with one space between, is not applied, but keeps others from being found
within these chunks.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from threading import RLock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from . import chunk_lookup
from .byte_strings import PADDING
from .chunk_words import HASH_START, HASH_STEP, Hashes, is_in
from .chunked_text import SPACE, TextPart, find_chunks
from .compiled import compiled
from .english_rules import EnglishRules, english_rules, special_sequences


@compiled
def find_runs(part: TextPart, table: chunk_lookup.WordTable, pairs: Hashes, runs: npt.NDArray[np.int64]) -> int:
    """Find chunks whose words depend on their neighbours, in runs of ``[first, last)``; return how many there are.

    No sequence reaches over a run's ends, so its words depend on nothing else. ``pairs`` are those of `EnglishRules`;
    ``runs`` has the shape ``[chunks, 2]``.
    """
    count = 0
    for text in range(len(part.begin)):
        odd, chunk, last = False, part.first[text], part.last[text]
        free = chunk
        while chunk < last:
            flags = table.flags[part.entry[chunk]]
            odd |= (flags & chunk_lookup.CHUNK_ODD) != 0
            if flags & chunk_lookup.CHUNK_REJOINED:
                first = chunk
                while first > free and _may_be_spanned(part, table, pairs, first):
                    first -= 1
                while chunk + 1 < last and _may_be_spanned(part, table, pairs, chunk + 1):
                    chunk += 1
                    odd |= (table.flags[part.entry[chunk]] & chunk_lookup.CHUNK_ODD) != 0
                free = chunk + 1
                if free - first > 1:
                    runs[count, 0], runs[count, 1] = first, free
                    count += 1
            chunk += 1
        part.irregular[text] = odd
    return count


@compiled
def _may_be_spanned(part: TextPart, table: chunk_lookup.WordTable, pairs: Hashes, chunk: int) -> bool:
    """Return whether one of spaCy's sequences may have the word before ``chunk``, in the same text, and its first."""
    last, first = table.last_hash[part.entry[chunk - 1]], table.first_hash[part.entry[chunk]]
    if part.gap[chunk] != SPACE:
        return False
    if last == np.uint64(0) or first == np.uint64(0):
        return True
    value = ((HASH_START ^ last) * HASH_STEP ^ first) * HASH_STEP
    return is_in(pairs, value if value != np.uint64(0) else np.uint64(1))


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

    Callers of `locate`, `table` and `replace` hold `lock` for as long as the parts are used: the next call may forget
    chunks.
    """

    def __init__(self, nlp: Any) -> None:
        """Take a blank English pipeline with a sentencizer.

        Raises SettingsError where its rules are not those that the kernels know.
        """
        sequences = special_sequences(nlp.tokenizer)
        self.rules: EnglishRules = english_rules(nlp, sequences.values())
        self.lock = RLock()
        self._nlp = nlp
        self._sequences = tuple(sequences)
        self._seed = secrets.randbits(64) | 1
        self._parts: deque[tuple[TextPart, dict[str, int]]] = deque(maxlen=KEPT_PARTS)
        """The latest ones, and the row of each text in them."""
        self._runs: dict[str, list[int]] = {}
        self.table: chunk_lookup.WordTable = chunk_lookup.empty_table(self._seed)

    def locate(self, texts: Sequence[str]) -> Iterator[Located]:
        """Yield where the texts are; those that are in no part yet are in a new one."""
        left = list(range(len(texts)))
        for part, rows in [*self._parts][::-1]:
            here = [(rows[texts[at]], at) for at in left if texts[at] in rows]
            if here:
                left = [at for at in left if texts[at] not in rows]
                yield Located(part, *np.array(here).T.copy())
        if left:
            new = [texts[at] for at in left]
            encoded = [text.encode() for text in new]
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            ends = np.cumsum(lengths)
            data = np.frombuffer(bytearray().join((*encoded, bytes(PADDING))), np.uint8)  # of the kernels' one type
            part = self.split(data, ends - lengths, ends, new, may_forget=len(new) == len(texts))
            self._remember(part, new)
            yield Located(part, np.arange(len(new)), np.array(left))

    def _remember(self, part: TextPart, texts: Sequence[str]) -> None:
        """Remember that the part's rows are these texts."""
        self._parts.append((part, {text: row for row, text in enumerate(texts)}))

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
        self._remember(TextPart(*shared), known)

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
        if may_forget and self.table.used[0] > chunk_lookup.MOST_ENTRIES:
            self.forget()
        entry, unknown = np.empty(count, np.int32), np.empty(count, np.int32)
        scratch, ahead = np.empty((3, longest + 1), np.int32), np.empty((3, chunk_lookup.AHEAD), np.uint64)
        done = 0
        while True:
            table = self.table
            done, left = chunk_lookup.look_up(
                table, self.rules, data, chunk_begin, chunk_end, done, entry, unknown, scratch, ahead
            )
            self._ask_spacy(unknown[:left].tolist())
            if done == count:
                break
            size = int(chunk_end[done] - chunk_begin[done])
            self.table = chunk_lookup.with_room(table, 1, size, size)
        characters = np.fromiter(map(len, texts), np.int64, len(texts)) if texts is not None else np.zeros(0, np.int64)
        first = np.append([0], last[:-1])
        part = TextPart(
            data, begin, end, characters, first, last, np.zeros(len(begin), np.bool_), chunk_begin, entry, gap
        )
        runs = np.empty((count, 2), np.int64)
        found = find_runs(part, self.table, self.rules.pairs, runs)
        for first, behind in runs[:found].tolist():
            self._cut_together(part, first, behind)
        return part

    def forget(self) -> None:
        """Forget all chunks and parts."""
        self._parts.clear()
        self._runs.clear()
        self.table = chunk_lookup.emptied(self.table)

    def _cut_together(self, part: TextPart, first: int, behind: int) -> None:
        """Give the chunks ``[first, behind)``, which have one space between them, the words that they have together."""
        old = part.entry[first:behind].tolist()
        end = int(part.chunk_begin[behind - 1]) + int(self.table.chunks[old[-1], chunk_lookup.BYTES])
        text = part.data[part.chunk_begin[first] : end].tobytes().decode()
        entries = self._runs.get(text)
        if entries is None:
            self.table = chunk_lookup.with_room(self.table, len(old), 0, len(text))
            words = iter(self._words_of(text))
            entries = [self._twin(entry, words) for entry in old]
            self._runs[text] = entries
        part.entry[first:behind] = entries

    def _twin(self, entry: int, words: Iterator[str]) -> int:
        """Make another entry of the same chunk; its words are the next ones."""
        table = self.table
        twin = int(table.used[0])
        table.used[0] += 1
        for column in (table.chunks, table.flags, table.first_hash, table.last_hash):
            column[twin] = column[entry]
        table.hashes[twin] = 0
        own: list[str] = []
        missing = int(table.chunks[entry, chunk_lookup.CHARACTERS])
        while missing > 0:
            own.append(next(words))
            missing -= len(own[-1])
        self._put_words(twin, own)
        return twin

    def _ask_spacy(self, entries: list[int]) -> None:
        """Fill in the words of chunks that the kernel leaves to spaCy."""
        table = self.table
        for entry in entries:
            begin, size = int(table.chunks[entry, chunk_lookup.KEY]), int(table.chunks[entry, chunk_lookup.BYTES])
            chunk = table.keys[begin : begin + size].tobytes().decode()
            words = self._words_of(chunk)
            if any(text in chunk for text in self._sequences):  # perhaps more than needed: spaCy is asked once more
                table.flags[entry] |= chunk_lookup.CHUNK_REJOINED
            if "".join(words) == chunk:
                self._put_words(entry, words)
            else:
                table.flags[entry] |= chunk_lookup.CHUNK_ODD

    def _words_of(self, text: str) -> list[str]:
        """Return spaCy's words, with another one in place of IS_ALPHA, which it cannot hold."""
        text = text.replace("IS_ALPHA", "IS_ALPHB")
        with self._nlp.memory_zone():
            return [token.text for token in self._nlp.tokenizer(text)]

    def _put_words(self, entry: int, words: list[str]) -> None:
        text = np.array(list(map(ord, "".join(words))), np.int32)
        ends = np.cumsum([*map(len, words)], dtype=np.int32)
        chunk_lookup.put_words(self.table, self.rules.classes, entry, text, ends, len(words))
