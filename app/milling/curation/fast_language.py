"""The step ``language`` for many documents: by a kernel, believed as long as it agrees with fastText."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self
from zlib import crc32

import numpy as np

from tokenmill.documents import Document
from tokenmill.errors import EngineError, RecordError

from ..document_columns import DocumentColumns
from ..steps.language import FIRST_LOOK, SURE, LanguageStep, language_named, model_file
from ..steps.protocol import Answer, Rejected
from .byte_strings import PADDING
from .language_kernel import NO_LABEL, likeliest
from .language_model import LanguageModel, read_model

SAMPLE_ONE_IN: Final = 1024
"""One document in this many is asked of fastText as well, which takes eight times as long as the kernel."""
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class FastLanguage:
    """A step that is fastText for one document, and a kernel for many."""

    reference: LanguageStep
    model: LanguageModel
    labels: list[str]

    @classmethod
    def of(cls, reference: LanguageStep) -> Self:
        """Return the step with a kernel.

        Raises:
            ValueError: the installed model is of another kind than the kernel's.

        """
        return cls(reference, *_read(model_file()))

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
            EngineError: a document of the sample has another language or score by fastText; none should be used.

        """
        found = self.languages_of(documents.texts)
        for text, one in zip(documents.texts, found, strict=True):
            if crc32(text[:FIRST_LOOK].encode()) % SAMPLE_ONE_IN == 0:
                self._compare(text, one)
        return list(self._answers(documents, found))

    def check(self, texts: Sequence[str]) -> None:
        """Compare kernel and fastText on each of the texts.

        Raises:
            EngineError: they differ.

        """
        for text, one in zip(texts, self.languages_of(texts), strict=True):
            self._compare(text, one)

    def languages_of(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Return language and score of each text, after one look or two, as `LanguageStep.look_at` does."""
        beginning = self.reference.beginning
        found = self._look([text[: min(FIRST_LOOK, beginning)] for text in texts])
        unsure = [
            index
            for index, (_, score) in enumerate(found)
            if score < SURE and min(len(texts[index]), beginning) > FIRST_LOOK
        ]
        for index, one in zip(unsure, self._look([texts[index][:beginning] for index in unsure]), strict=True):
            found[index] = one
        return found

    def _look(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        encoded = [self.reference.asked(text).encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ends = np.cumsum(lengths)
        data = np.frombuffer(bytearray().join((*encoded, bytes(PADDING))), np.uint8)
        labels, scores = np.empty(len(encoded), np.int32), np.empty(len(encoded), np.float32)
        nodes = len(self.model.left)
        room = np.empty(self.model.rows.shape[1], np.float32), np.empty(nodes, np.int32), np.empty(nodes, np.float32)
        likeliest(self.model, data, ends - lengths, ends, labels, scores, *room)
        names = [None if label == NO_LABEL else self.labels[label] for label in labels.tolist()]
        return [language_named(name, score) for name, score in zip(names, scores.tolist(), strict=True)]

    def _compare(self, text: str, one: tuple[str, float]) -> None:
        right = self.reference.look_at(text)
        if one != right:
            raise EngineError(
                f"{self.name}: the kernel says {one} and fastText {right} of the text that begins with "
                f"{text[:_SHOWN_CHARACTERS]!a}"
            )

    def _answers(self, documents: DocumentColumns, found: list[tuple[str, float]]) -> Iterator[tuple[int, Answer]]:
        step = self.reference
        for index, (language, score) in enumerate(found):
            if step.stays(language, score):
                continue
            document = documents.at(index)
            answer: Answer
            try:
                answer = step.answer(document, language, score)
            except RecordError as error:
                answer = error
            if answer is not document:
                yield index, answer


@cache
def _read(file: Path) -> tuple[LanguageModel, list[str]]:
    return read_model(file)
