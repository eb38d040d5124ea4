"""What every decoder promises."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tokenmill.documents import Document
from tokenmill.errors import RecordError
from tokenmill.stages.document_columns import DocumentColumns


class Decoded(NamedTuple):
    """What many values are."""

    documents: DocumentColumns
    """Of the values that are documents, in their order."""
    refused: list[tuple[int, RecordError]]
    """The indices of all others, ascending, each with the reason."""


class Decoder(Protocol):
    """Turns a record's value into a document, or says why it cannot be one."""

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return, as JSON types, what decides the answers beside the settings in the recipe: a version, mostly.

        It stands in the recipe before what the steps say of themselves, so the fingerprint covers it. Nothing at all of
        a decoder whose rules never changed.
        """
        ...

    def __call__(self, value: bytes) -> Document:
        """Return the document that ``value`` is; the answer depends on ``value`` alone, for any bytes.

        Raises:
            RecordError: ``value`` is no document; the reason is one of `tokenmill.stages.decoding.REASONS`, or of
                those of a user's function. Nothing else is ever raised.

        """

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Return what the decoder says of each value alone."""


def one_by_one(decoder: Callable[[bytes], Document], values: Sequence[bytes]) -> Decoded:
    """Return what ``decoder`` says of each value, for those that have no quicker way to say it."""
    decoded = Decoded(DocumentColumns(), [])
    for index, value in enumerate(values):
        try:
            decoded.documents.append(decoder(value))
        except RecordError as error:
            decoded.refused.append((index, error))
    return decoded
