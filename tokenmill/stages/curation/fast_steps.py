"""Steps whose answers for many documents come from kernels, believed as long as they agree with the references."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from tokenmill.documents import Document
from tokenmill.errors import EngineError, SettingsError
from tokenmill.stages.curation.judges import Judge, Judgement, judge_of
from tokenmill.stages.curation.probe import CURATION_PROBE
from tokenmill.stages.curation.word_split import Located, WordSplit
from tokenmill.stages.document_columns import DocumentColumns
from tokenmill.stages.steps.protocol import Answer, Rejected, Step

SAMPLE_ONE_IN: Final = 8192
"""One document in this many is judged by the reference as well. It takes a hundred times as long as the kernels, so
comparing costs some 1 % of their time."""
SAMPLE_CHARACTERS: Final = 1 << 16
"""Of a longer text, only a beginning of this length is compared, judged by itself: no text stalls the worker."""
_LOOKED_AT: Final = 8
"""Bytes of a text, spread over all of it, that decide with its length whether it is compared."""
_FACTORS: Final = np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 2 * _LOOKED_AT, 2, dtype=np.uint64)
"""Odd multiples of 2**64 over the golden ratio."""
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
        return [(at, self._answer(documents.at(at), judgements[at])) for at in sorted(judgements)]

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
                f"{self.name}: the kernel says {_shown(judgement, text)} and the reference {_shown(right, text)} of the "
                f"text that begins with {text[:_SHOWN_CHARACTERS]!a}"
            )

    def _alone(self, text: str) -> Judgement:
        return dict(self.judge(self.words, [text])).get(0, text)

    def _answer(self, document: Document, judgement: Judgement) -> Answer:
        if judgement is None:
            return self.reference(document)
        return judgement if isinstance(judgement, Rejected) else document._replace(text=judgement)


@cache
def word_split() -> WordSplit:
    """Return the one of this process.

    Raises:
        SettingsError: the installed spaCy has other rules than the kernels.

    """
    import spacy  # noqa: PLC0415 - takes a second: only recipes with such a filter need it

    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    return WordSplit(pipeline)


def with_kernels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps, those with a kernel as `FastStep`, compared on the probe.

    Raises:
        SettingsError: kernel and reference differ, or spaCy has other rules than the kernels.

    """
    faster: list[Step] = []
    for step in steps:
        judge = judge_of(step)
        if judge is None:
            faster.append(step)
            continue
        fast = FastStep(step, judge, word_split())
        try:
            fast.check(CURATION_PROBE)
        except EngineError as error:
            raise SettingsError(f"the kernels do not give the references' answers: {error}") from error
        faster.append(fast)
    return tuple(faster)


def sampled(located: Located) -> Iterator[int]:
    """Yield the indices of the texts that are compared: one in `SAMPLE_ONE_IN`, the same ones for every worker.

    The choice is a hash of the text's length and of `_LOOKED_AT` of its bytes, as in
    `tokenmill.stages.engines.checked.sampled`.
    """
    begin = located.part.begin[located.rows]
    lengths = located.part.end[located.rows] - begin
    some = np.flatnonzero(lengths)
    begin, lengths = begin[some], lengths[some]
    key = lengths.astype(np.uint64)
    for at in range(_LOOKED_AT):
        key += located.part.data[begin + (lengths - 1) * at // (_LOOKED_AT - 1)].astype(np.uint64) * _FACTORS[at]
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    key ^= key >> np.uint64(31)
    yield from located.indices[some[key % np.uint64(SAMPLE_ONE_IN) == 0]].tolist()


def _shown(judgement: Judgement, text: str) -> str:
    if isinstance(judgement, Rejected):
        return judgement.reason
    return "that it stays" if judgement == text else "that its text becomes another one"
