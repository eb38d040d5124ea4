"""The step ``sample``: a share of the documents is kept, chosen by a hash of each document's id."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import xxhash

from tokenmill.documents import Document
from tokenmill.parameters import describe_step

from ..document_columns import DocumentColumns
from .protocol import Answer, Rejected, each_alone

NOT_CHOSEN: Final = "not_chosen"
"""Filter reason: the document is outside the share."""
_HASHES: Final = 1 << 64
"""Number of values of the hash."""


@dataclass(frozen=True, slots=True)
class SampleStep:
    """Keeps a share of the documents: the same ones in every run, whatever their order."""

    rate: float = 0.5
    """Share that is kept, from 0 to 1."""
    seed: int = 0
    """Another seed chooses other documents; a larger rate with the same seed keeps all that a smaller one keeps."""
    by: Literal["id", "content"] = "id"
    """What is hashed: the id, or the text where a document has none (id); or the text (content)."""

    def __post_init__(self) -> None:
        """Refuse a rate that is no share, and a seed that the hash does not take."""
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate = {self.rate}: a share is from 0 to 1")
        if not 0 <= self.seed < _HASHES:
            raise ValueError(f"seed = {self.seed}: it must be from 0 to 2^64 - 1")

    @property
    def name(self) -> str:
        """``sample``."""
        return "sample"

    def describe(self) -> dict[str, Any]:
        """Return name, version and all parameters."""
        return describe_step(self, version=1)

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `NOT_CHOSEN`.

        It is chosen where XXH3-64 of ``str(id)`` in UTF-8, with the seed, is below the rate times 2^64.
        """
        named = document.id is not None and self.by == "id"
        content = str(document.id) if named else document.text
        chosen = xxhash.xxh3_64_intdigest(content.encode(), self.seed) < int(self.rate * _HASHES)
        return document if chosen else Rejected(NOT_CHOSEN)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return those that are filtered out."""
        return each_alone(self, documents)
