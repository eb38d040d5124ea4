"""What every decoder promises."""

from typing import Protocol

from tokenmill.documents import Document


class Decoder(Protocol):
    """Turns a record's value into a document, or says why it cannot be one."""

    def __call__(self, value: bytes) -> Document:
        """Return the document that ``value`` is; the answer depends on ``value`` alone, for any bytes.

        Raises:
            RecordError: ``value`` is no document; the reason is one of `tokenmill.decoding.REASONS`. Nothing else is
                ever raised.

        """
