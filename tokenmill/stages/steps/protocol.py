"""What every step promises."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.documents import Document
from tokenmill.stages.document_columns import DocumentColumns


@dataclass(frozen=True, slots=True)
class Rejected:
    """The answer of a step that filters out a document."""

    reason: str
    """At most 32 of ``a-z``, ``0-9`` and ``_``; one of the few that the step can give, for it becomes a counter."""


class Step(Protocol):
    """A pure function from a document to a document, or to the reason why it is filtered out."""

    @property
    def name(self) -> str:
        """What the step is called in settings and logs."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return, as JSON types, all that decides the step's answers (name, parameters, version).

        The fingerprint covers it: two steps that describe themselves alike give the same answers.
        """
        ...

    def __call__(self, document: Document) -> Document | Rejected:
        """Return what becomes of the document; it depends on the document and on what `describe` says, on nothing else.

        Raises:
            RecordError: the step cannot answer for this document, which is dead-lettered.

        """
        ...

    def touched(self, documents: DocumentColumns) -> Iterable[int]:
        """Return the indices of the documents that the step may change or filter out; all others stay as they are."""
        ...
