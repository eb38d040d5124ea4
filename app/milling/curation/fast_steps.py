"""Steps whose answers for many documents come from kernels, believed as long as they agree with the references."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from tokenmill.documents import Document
from tokenmill.errors import EngineError, SettingsError

from ..document_columns import DocumentColumns
from ..steps.language import LanguageStep
from ..steps.protocol import Answer, Rejected, Step
from .compiled import compiling_once
from .fast_language import FastLanguage
from .judges import Judge, Judgement, judge_of
from .part import hash_texts
from .probe import CURATION_PROBE
from .word_split import Located, WordSplit
from .words import import_spacy

SAMPLE_ONE_IN: Final = 8192
"""One document in this many is judged by the reference as well. It takes a hundred times as long as the kernels, so
comparing costs some 1 % of their time."""
SAMPLE_CHARACTERS: Final = 1 << 16
"""Of a longer text, only a beginning of this length is compared, judged by itself: no text stalls the worker."""
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class FastStep:
    """A step that is its reference for one document, and a kernel for many."""

    reference: Step
    judge: Judge
    words: WordSplit

    @property
    def name(self) -> str:
        """The reference's name."""
        return self.reference.name

    def describe(self) -> dict[str, Any]:
        """Return what the reference says of itself: the answers are the same."""
        return self.reference.describe()

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the reference's answer."""
        return self.reference(document)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return the index and the answer of each document that does not stay as it is, ascending.

        Raises:
            EngineError: a document of the sample has another answer by the reference; none should be used.

        """
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

    def check(self, texts: Iterable[str]) -> None:
        """Compare kernel and reference on each of the texts.

        Raises:
            EngineError: they differ.

        """
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
                f"the text that begins with {text[:_SHOWN_CHARACTERS]!a}"
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

    Raises:
        SettingsError: the installed spaCy has other rules than the kernels.

    """
    pipeline = import_spacy().blank("en")
    pipeline.add_pipe("sentencizer")
    return WordSplit(pipeline)


def with_kernels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps, those with a kernel as `FastStep`, compared on the probe.

    Raises:
        SettingsError: kernel and reference differ, or spaCy has other rules than the kernels.

    """
    with compiling_once({step.name for step in steps}):
        return tuple(_with_kernel(step) for step in steps)


def _with_kernel(step: Step) -> Step:
    if isinstance(step, LanguageStep):
        return _with_language_kernel(step)
    judge = judge_of(step)
    if judge is None:
        return step
    fast = FastStep(step, judge, word_split())
    try:
        fast.check(CURATION_PROBE)
    except EngineError as error:
        raise SettingsError(f"the kernels do not give the references' answers: {error}") from error
    return fast


def _with_language_kernel(step: LanguageStep) -> Step:
    try:
        fast = FastLanguage.of(step)
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
