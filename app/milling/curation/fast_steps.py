"""Steps whose answers for many documents come from kernels, believed as long as they agree with the references.

A kernel is the judge of a text: a step's parameters in; for each text that does not stay as it is, its answer out.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
from .byte_strings import PADDING
from .c4_kernel import REASONS as C4_REASONS
from .c4_kernel import C4Limits, count_sentences, keep_lines
from .choosing import CURATION_PROBE, WITH_KERNELS, KernelStep
from .chunk_lookup import WordTable
from .chunked_text import hash_texts
from .compiled import ASK, KEEP, compiling_once
from .fast_language import FastLanguage
from .fineweb_kernel import REASONS as FINEWEB_REASONS
from .fineweb_kernel import FinewebLimits, judge_fineweb
from .quality_kernel import REASONS as QUALITY_REASONS
from .quality_kernel import QualityLimits, judge_quality
from .repetition_kernel import REASONS as REPETITION_REASONS
from .repetition_kernel import RepetitionLimits, Room, judge_repetition, most_items, slots_for
from .word_split import Located, WordSplit
from .words import TERMINAL, import_spacy

T = TypeVar("T")
Verdicts: TypeAlias = npt.NDArray[np.int8]
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
    data = np.frombuffer(bytearray().join((*stop_words, bytes(PADDING))), np.uint8)
    begin = np.cumsum([0, *map(len, stop_words)], dtype=np.int64)
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
    """Return room for the texts' words and lines."""
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
                f"the text that begins with {text[:60]!a}"
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
    """Return the one of this process.

    Raises SettingsError where the installed spaCy has other rules than the kernels.
    """
    pipeline = import_spacy().blank("en")
    pipeline.add_pipe("sentencizer")
    pipeline.vocab.lex_attr_getters = {}  # what a word is like is asked of no word here, and takes most of the time
    return WordSplit(pipeline)


def with_kernels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps, those with a kernel as `FastStep`, compared on the probe.

    Raises SettingsError where kernel and reference differ, or spaCy has other rules than the kernels.
    """
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
    """Yield the indices of the texts that are compared: one in `SAMPLE_ONE_IN`, the same ones for every worker.

    The choice is a hash of the text.
    """
    keys = np.empty(len(located.rows), np.uint64)
    hash_texts(located.part, located.rows, keys)
    yield from located.indices[keys % np.uint64(SAMPLE_ONE_IN) == 0].tolist()


def _shown(judgement: Judgement, text: str) -> str:
    if isinstance(judgement, Rejected):
        return judgement.reason
    return "that it stays" if judgement == text else "that its text becomes another one"
