"""What every step promises, and how a step that decides document by document answers for many."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, Self

from tokenmill.documents import Document, Limits
from tokenmill.errors import RecordError
from tokenmill.parameters import canonical_lines, describe_step

from ..curation.words import english
from ..document_columns import DocumentColumns


@dataclass(frozen=True, slots=True)
class Rejected:
    """The answer of a step that filters out a document."""

    reason: str
    """At most 32 of ``a-z``, ``0-9`` and ``_``; one of the few that the step can give, for it becomes a counter."""
    detail: str = field(default="", compare=False)
    """The numbers that decided, for people: "0.41 of lines are duplicates, over 0.3". `Step.many` may leave it out."""


Answer = Document | Rejected | RecordError
"""What becomes of a document in a step, where it does not stay as it is; an error is raised by `Step.__call__`."""


class Step(Protocol):
    """A pure function from a document to a document, or to the reason why it is filtered out."""

    @property
    def name(self) -> str:
        """What the step is called in settings and logs."""

    def describe(self) -> dict[str, Any]:
        """Return, as JSON types, all that decides the step's answers (name, parameters, version).

        The fingerprint covers it: two steps that describe themselves alike give the same answers.
        """

    def __call__(self, document: Document) -> Document | Rejected:
        """Return what becomes of the document; it depends on the document and on what `describe` says alone.

        The document itself is returned where it stays as it is. Raises RecordError where the step cannot answer for
        this document, which is dead-lettered.
        """

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return the index and the answer of each document that does not stay as it is, ascending.

        They equal those of `__call__`; what that would raise is an answer here. ``documents`` are not changed, now or
        later, so what was computed of them may be kept for the next step.
        """


class EachAlone(ABC):
    """What steps have alike that look at one document at a time, and that their parameters decide entirely."""

    __slots__ = ()

    name: ClassVar[str]
    """What the step is called in settings and logs."""
    version: ClassVar[int] = 1
    """Raised with every change of an answer."""

    @abstractmethod
    def __call__(self, document: Document) -> Document | Rejected:
        """Return what becomes of the document, as `Step` says."""

    def describe(self) -> dict[str, Any]:
        """Return name, version and all parameters."""
        return describe_step(self, version=self.version)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return the index and the answer of each document that does not stay as it is, ascending."""
        return each_alone(self, documents)

    def within(self, metadata_fields: Sequence[str], limits: Limits) -> Self:  # noqa: ARG002 - for steps with fields
        """Return the step for a stream that carries these fields, within limits; a ValueError says why it cannot be."""
        return self

    def by_rules(self, version: int) -> Self:  # noqa: ARG002 - for steps whose rules have changed
        """Return the step by the rules of a recipe that was settled, or the newest, which another fingerprint shows."""
        return self

    @staticmethod
    def list_form(content: bytes, _values: Mapping[str, Any], /) -> bytes:
        """Return what is kept of a list file, given the parameters as written; a ValueError says what is wrong."""
        return canonical_lines(content)


class EnglishFilter(EachAlone):
    """A filter of words or sentences as spaCy has them for English."""

    __slots__ = ()

    def describe(self) -> dict[str, Any]:
        """Return name, version, all parameters, and whose words and sentences these are."""
        return describe_step(self, version=self.version, words=english().describe())


def each_alone(
    step: Callable[[Document], Document | Rejected],
    documents: DocumentColumns,
    before: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Answer]]:
    """Yield what `Step.many` promises, by calling ``step`` for each document, and ``before`` with its index before."""
    for index in range(len(documents)):
        if before is not None:
            before(index)
        document = documents.at(index)
        answer: Answer
        try:
            answer = step(document)
        except RecordError as error:
            answer = error
        if answer is not document:
            yield index, answer


SHORT_FORMS: Final = frozenset({"normalize", "function", "not_empty", "min_chars", "normalized_length"})
"""Steps that settings of their own ask for. There is one of each, so their reasons are counted as they are."""


def step_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return a label for each step: its name, and for the later ones of a name ``regex_2``, ``regex_3``."""
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(labels)


def counting_key(label: str, reason: str) -> str:
    """Return the name under which totals count what a step filters out; the reason alone for `SHORT_FORMS`."""
    return reason if label in SHORT_FORMS else f"{label}.{reason}"
