"""What every decoder promises."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tokenmill.documents import Document
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns


class Decoded(NamedTuple):
    """What many values are."""

    documents: DocumentColumns
    """The documents, in the order of their values."""
    refused: list[tuple[int, RecordError]]
    """The indices of all other values, ascending, each with the reason."""


class Decoder(Protocol):
    """Turns a record's value into a document, or says why it cannot be one."""

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return, as JSON types, what decides the answers beside the settings in the recipe: a version, mostly.

        It comes before the descriptions of the steps in the recipe, so the fingerprint covers it. It is empty for a
        decoder whose rules never changed.
        """
        ...

    def __call__(self, value: bytes) -> Document:
        """Return the document that ``value`` is; the answer depends on ``value`` alone, for any bytes.

        Raises:
            RecordError: ``value`` is no document; the reason is one of `milling.decoding.REASONS`, or of
                those of a user's function. Nothing else is ever raised.

        """

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Decode each value by itself."""


def one_by_one(decoder: Callable[[bytes], Document], values: Sequence[bytes]) -> Decoded:
    """Call ``decoder`` for each value: for decoders that have no faster way."""
    decoded = Decoded(DocumentColumns(), [])
    for index, value in enumerate(values):
        try:
            decoded.documents.append(decoder(value))
        except RecordError as error:
            decoded.refused.append((index, error))
    return decoded
