"""Steps whose answers for many documents come from kernels, believed as long as they agree with the references.

A kernel is the judge of a text: a step's parameters in; for each text that does not stay as it is, its answer out.

`WordSplit` makes parts of texts, whose words are known; one for all steps of a recipe. A kernel says which chunks have
other words next to other chunks. spaCy looks for its special cases in the words of the whole text. One that would span
two chunks, with one space between, is not applied, but keeps others from being found within these chunks.
"""

import inspect
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document
from tokenmill.errors import EngineError, SettingsError

from ..document_columns import DocumentColumns
from ..steps.c4_quality import C4Quality
from ..steps.fineweb_quality import FinewebQuality
from ..steps.gopher_quality import GopherQuality
from ..steps.gopher_repetition import GopherRepetition
from ..steps.language import LanguageStep
from ..steps.protocol import Answer, Rejected, Step
from . import chunk_lookup
from .choosing import CURATION_PROBE, WITH_KERNELS, KernelStep
from .chunk_lookup import SPACE, TextPart, WordTable, find_chunks, hash_texts
from .chunk_words import HASH_START, HASH_STEP, EnglishRules, Hashes, english_rules, is_in, special_sequences
from .compiled import ASK, KEEP, PADDING, Numbers, Verdicts, compiled, compiling_once, laid_out
from .fast_language import SHOWN_CHARACTERS, FastLanguage
from .quality_kernel import (
    C4_REASONS,
    FINEWEB_REASONS,
    QUALITY_REASONS,
    C4Limits,
    FinewebLimits,
    QualityLimits,
    count_sentences,
    judge_fineweb,
    judge_quality,
    keep_lines,
)
from .repetition_kernel import REPETITION_REASONS, RepetitionLimits, Room, judge_repetition, most_items, slots_for
from .words import TERMINAL, import_spacy


@compiled
def find_runs(part: TextPart, table: chunk_lookup.WordTable, pairs: Hashes, runs: Numbers) -> int:
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
    rows: Numbers
    """Of the texts in the part."""
    indices: Numbers
    """Of the texts among those that were asked for."""


class WordSplit:
    """Cuts texts into words as spaCy's blank English pipeline does, and remembers chunks and the latest parts.

    Callers of `locate`, `table` and `replace` hold `lock` for as long as the parts are used: the next call may forget
    chunks.
    """

    def __init__(self, nlp: Any) -> None:
        """Take a blank English pipeline with a sentencizer. Raises SettingsError where its rules are unknown here."""
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
            data, bounds = laid_out([text.encode() for text in new])
            part = self.split(data, bounds[:-1], bounds[1:], new, may_forget=len(new) == len(texts))
            self._remember(part, new)
            yield Located(part, np.arange(len(new)), np.array(left))

    def _remember(self, part: TextPart, texts: Sequence[str]) -> None:
        self._parts.append((part, {text: row for row, text in enumerate(texts)}))

    def replace(self, left: TextPart, rows: Numbers, texts: list[str], indices: Numbers) -> Iterator[tuple[int, str]]:
        """Yield what ``rows`` of ``left`` say, stripped, where it is another text, with its index; remember it."""
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
        begin: Numbers,
        end: Numbers,
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


T = TypeVar("T")
Judgement: TypeAlias = Rejected | str | None
"""Of a text: why it is filtered out, or the text that it becomes; None: the reference has to be asked."""
Judge: TypeAlias = Callable[[WordSplit, list[str]], Iterator[tuple[int, Judgement]]]
"""Yields the judgement of each text that does not stay as it is, with its index, in any order."""


def judge_of(step: Step) -> Judge | None:
    """Return the judge that answers as ``step`` does; None where no kernel knows the step with its parameters."""
    if isinstance(step, GopherQuality):
        return _quality(step)
    if isinstance(step, GopherRepetition):
        return _repetition(step)
    if isinstance(step, FinewebQuality):
        return _fineweb(step) if all(len(stop) == 1 for stop in step.stop_chars or ()) else None
    if isinstance(step, C4Quality) and step.split_paragraph and step.min_words_per_line > 0:
        return _c4(step)
    return None


def _by_kernel(
    kernel: Callable[..., None],
    limits: NamedTuple,
    reasons: tuple[str, ...],
    room: Callable[[Located, WordTable], Room | npt.NDArray[np.bool_]],
) -> Judge:
    def judge(split: WordSplit, texts: list[str]) -> Iterator[tuple[int, Judgement]]:
        for located in split.locate(texts):
            verdicts = _blank(located)
            kernel(located.part, split.table, located.rows, limits, verdicts, room(located, split.table))
            yield from _named(located, verdicts, reasons)

    return judge


def _quality(step: GopherQuality) -> Judge:
    stop_words = sorted({word.encode() for word in step.stop_words})
    data, begin = laid_out(stop_words)
    limits = _limits(QualityLimits, step, stop_words=data, stop_begin=begin)
    return _by_kernel(judge_quality, limits, QUALITY_REASONS, lambda *_: np.empty(len(stop_words), np.bool_))


def _repetition(step: GopherRepetition) -> Judge:
    (top_n, top_share), (dup_n, dup_share) = (
        (np.array([n for n, _ in pairs], np.int64), np.array([share for _, share in pairs], np.float64))
        for pairs in (step.top_n_grams, step.dup_n_grams)
    )
    limits = _limits(RepetitionLimits, step, top_n=top_n, top_share=top_share, dup_n=dup_n, dup_share=dup_share)
    top = tuple(f"top_{n}_gram" for n, _ in step.top_n_grams)
    reasons = (*REPETITION_REASONS, *top, *(f"duplicated_{n}_n_grams" for n, _ in step.dup_n_grams))
    return _by_kernel(judge_repetition, limits, reasons, _room)


def _fineweb(step: FinewebQuality) -> Judge:
    stops = TERMINAL if step.stop_chars is None else step.stop_chars
    limits = _limits(FinewebLimits, step, stop_chars=np.array(sorted(map(ord, stops)), np.int32))
    return _by_kernel(judge_fineweb, limits, FINEWEB_REASONS, _room)


def _c4(step: C4Quality) -> Judge:
    limits = _limits(C4Limits, step)

    def judge(split: WordSplit, texts: list[str]) -> Iterator[tuple[int, Judgement]]:
        for located in split.locate(texts):
            part, rows, verdicts = located.part, located.rows, _blank(located)
            kept = np.zeros(int((part.end[rows] - part.begin[rows]).sum()) + PADDING, np.uint8)
            bounds = np.empty(len(rows) + 1, np.int64)
            keep_lines(part, split.table, split.rules, rows, limits, verdicts, kept, bounds)
            left = split.split(kept, bounds[:-1].copy(), bounds[1:].copy())
            verdicts_left = _blank(located)
            count_sentences(left, split.table, np.arange(len(rows)), limits.min_num_sentences, verdicts_left)
            verdicts = np.where(verdicts == KEEP, verdicts_left, verdicts)
            yield from _named(located, verdicts, C4_REASONS)
            staying = np.flatnonzero(verdicts == KEEP)
            yield from split.replace(left, staying, [texts[at] for at in located.indices[staying]], located.indices)

    return judge


def _limits(kind: Callable[..., T], step: Step, **others: npt.NDArray[Any]) -> T:
    """Return a step's parameters as its kernel takes them: numbers, 0 where a rule is off, but for ``others``."""
    values = {name: getattr(step, name) for name in inspect.signature(kind).parameters if name not in others}
    numbers = {name: value if isinstance(value, bool) else float(value or 0) for name, value in values.items()}
    return kind(**numbers, **others)


def _blank(located: Located) -> Verdicts:
    return np.zeros(len(located.rows), np.int8)


def _named(located: Located, verdicts: Verdicts, reasons: tuple[str, ...]) -> Iterator[tuple[int, Judgement]]:
    for at in np.flatnonzero(verdicts).tolist():
        number = int(verdicts[at])
        yield int(located.indices[at]), None if number == ASK else Rejected(reasons[number - 1])


def _room(located: Located, table: WordTable) -> Room:
    part, rows = located.part, located.rows
    size = most_items(part, table, rows) + 2
    longest = int((part.end[rows] - part.begin[rows]).max(initial=0))
    return Room(
        begin=np.empty(size, np.int64),
        end=np.empty(size, np.int64),
        characters=np.empty(size, np.int64),
        hashes=np.empty(size, np.uint64),
        powers=np.empty(size, np.uint64),
        n_grams=np.empty(size, np.uint64),
        counts=np.empty(size, np.int32),
        slots=np.empty(slots_for(size), np.int32),
        blocks=np.empty(slots_for(size) // 2, np.uint64),
        joined=np.empty(longest + PADDING, np.uint8),
    )


SAMPLE_ONE_IN: Final = 8192
"""One document in this many is judged by the reference as well. It takes a hundred times as long as the kernels, so
comparing costs some 1 % of their time."""
SAMPLE_CHARACTERS: Final = 1 << 16
"""Of a longer text, only a beginning of this length is compared, judged by itself: no text stalls the worker."""


@dataclass(frozen=True, slots=True)
class FastStep(KernelStep):
    """A step that is its reference for one document, and a kernel for many."""

    reference: Step
    judge: Judge
    words: WordSplit

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Answer, after a sample was compared with the reference."""
        with self.words.lock:
            judgements = dict(self.judge(self.words, documents.texts))
            chosen = [at for located in self.words.locate(documents.texts) for at in sampled(located)]
            for at in chosen:
                text = documents.texts[at]
                judgement = judgements.get(at, text)
                if len(text) > SAMPLE_CHARACTERS:
                    text = text[:SAMPLE_CHARACTERS]
                    judgement = self._alone(text)
                self.compare(text, judgement)
        return list(self._answers(documents, judgements))

    def check(self, texts: Sequence[str]) -> None:
        """Compare all of them."""
        with self.words.lock:
            for text in texts:
                self.compare(text, self._alone(text))

    def compare(self, text: str, judgement: Judgement) -> None:
        """Raise `EngineError` if the reference judges the text in another way; None is no judgement."""
        if judgement is None:
            return
        answer = self.reference(Document(text))
        right = answer.text if isinstance(answer, Document) else answer
        if judgement != right:
            raise EngineError(
                f"{self.name}: the kernel says {_shown(judgement, text)} and the reference {_shown(right, text)} of "
                f"the text that begins with {text[:SHOWN_CHARACTERS]!a}"
            )

    def _alone(self, text: str) -> Judgement:
        return dict(self.judge(self.words, [text])).get(0, text)

    def _answers(self, documents: DocumentColumns, judgements: dict[int, Judgement]) -> Iterator[tuple[int, Answer]]:
        for at in sorted(judgements):
            judgement = judgements[at]
            if isinstance(judgement, Rejected):
                yield at, judgement
                continue
            document = documents.at(at)
            answer = self.reference(document) if judgement is None else document._replace(text=judgement)
            if answer is not document:
                yield at, answer


@cache
def word_split() -> WordSplit:
    """Return the one of this process. Raises SettingsError where spaCy has other rules than the kernels."""
    pipeline = import_spacy().blank("en")
    pipeline.add_pipe("sentencizer")
    pipeline.vocab.lex_attr_getters = {}  # what a word is like is asked of no word here, and takes most of the time
    return WordSplit(pipeline)


def with_kernels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps, those with a kernel as `FastStep`. Raises SettingsError where it differs from its reference."""
    with compiling_once(WITH_KERNELS.intersection(step.name for step in steps)):
        return tuple(_with_kernel(step) for step in steps)


def _with_kernel(step: Step) -> Step:
    judge = judge_of(step)
    made = None if judge is None else FastStep(step, judge, word_split())
    try:
        fast = FastLanguage.of(step) if isinstance(step, LanguageStep) else made
        if fast is None:
            return step
        fast.check(CURATION_PROBE)
    except (EngineError, ValueError) as error:
        raise SettingsError(f"the kernels do not give the references' answers: {error}") from error
    return fast


def sampled(located: Located) -> Iterator[int]:
    """Yield the indices of the texts that are compared: one in `SAMPLE_ONE_IN`, the same for every worker."""
    keys = np.empty(len(located.rows), np.uint64)
    hash_texts(located.part, located.rows, keys)
    yield from located.indices[keys % np.uint64(SAMPLE_ONE_IN) == 0].tolist()


def _shown(judgement: Judgement, text: str) -> str:
    if isinstance(judgement, Rejected):
        return judgement.reason
    return "that it stays" if judgement == text else "that its text becomes another one"
