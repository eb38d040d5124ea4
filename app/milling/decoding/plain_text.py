"""Mode ``text``: the value is the text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenmill.documents import TOO_LARGE, Document, Limits
from tokenmill.errors import RecordError

from .protocol import INVALID_UTF8, Decoder

BOM: Final = b"\xef\xbb\xbf"
"""UTF-8's byte order mark: some programs begin a file with it; it is no part of the text."""


@dataclass(frozen=True, slots=True)
class TextDecoder(Decoder):
    """Takes any UTF-8 as text, less one leading byte order mark; never parses. Its documents have no id."""

    limits: Limits

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return nothing: these rules never changed."""
        return ()

    def __call__(self, value: bytes) -> Document:
        """Return the document; `RecordError` with ``invalid_utf8`` or ``too_large``."""
        value = value.removeprefix(BOM)
        text = decode_utf8(value)
        if len(value) > self.limits.max_text_bytes:
            limit = self.limits.max_text_bytes
            raise RecordError(TOO_LARGE, f"the text has {len(value)} bytes, over {limit} (max_text_bytes)")
        return Document(text)


def decode_utf8(value: bytes) -> str:
    """Return the text that ``value`` is in strict UTF-8 (no surrogates, no overlong forms).

    Raises RecordError: ``invalid_utf8``, with the position of the first byte that fits nowhere.
    """
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordError(INVALID_UTF8, f"byte {error.start} is no UTF-8: {error.reason}") from None
