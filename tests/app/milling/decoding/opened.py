"""A decoder with the usual settings, and a record's answer as one value."""

from typing import Any

from tests.app.milling.decoding.registered import EVERY_ID
from tokenmill.app.milling.decoding import Decoder, open_decoder
from tokenmill.documents import Document
from tokenmill.errors import RecordError


def opened(mode: str, **changed: Any) -> Decoder:
    """Return the decoder of ``mode`` with the usual settings, some of them ``changed``."""
    settings: dict[str, Any] = {
        "text_fields": ("text", "content"),
        "id_field": "id",
        "metadata_fields": (),
        "max_text_bytes": 1 << 20,
        "max_id_bytes": 128,
        "max_fields_bytes": 256,
        "schemas": EVERY_ID.get(mode),
    }
    return open_decoder(mode, **(settings | changed))


def answer(decoder: Decoder, value: bytes) -> Document | str:
    """Return the document, or the reason why there is none."""
    try:
        return decoder(value)
    except RecordError as error:
        return error.reason
