"""The step ``sample``: a share of the documents is kept, chosen by a hash of each document's id."""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import xxhash

from tokenmill.documents import Document

from .protocol import EachAlone, Rejected

NOT_CHOSEN: Final = "not_chosen"
"""Filter reason: the document is outside the share."""
_HASHES: Final = 1 << 64
"""Number of values of the hash."""


@dataclass(frozen=True, slots=True)
class SampleStep(EachAlone):
    """Keeps a share of the documents: the same ones in every run, whatever their order."""

    name: ClassVar[str] = "sample"

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

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `NOT_CHOSEN`.

        It is chosen where XXH3-64 of ``str(id)`` in UTF-8, with the seed, is below the rate times 2^64.
        """
        named = document.id is not None and self.by == "id"
        content = str(document.id) if named else document.text
        chosen = xxhash.xxh3_64_intdigest(content.encode(), self.seed) < int(self.rate * _HASHES)
        return document if chosen else Rejected(NOT_CHOSEN)
