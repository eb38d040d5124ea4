"""A decoder with the usual settings, and a record's answer as one value."""

from dataclasses import replace
from typing import Any

from tests.app.milling.decoding.registered import EVERY_ID
from tests.mills import RECIPE
from tokenmill.app.milling.decoding import Decoder, open_decoder
from tokenmill.documents import Document
from tokenmill.errors import RecordError


def opened(mode: str, **changed: Any) -> Decoder:
    schemas = changed.pop("schemas", EVERY_ID.get(mode))
    rules = changed.pop("rules", None)
    steps = () if rules is None else ({"name": "decode", "rules": rules},)
    usual = replace(RECIPE, decode=mode, steps=steps, max_text_bytes=1 << 20, max_id_bytes=128, max_fields_bytes=256)
    return open_decoder(replace(usual, **changed), schemas)


def answer(decoder: Decoder, value: bytes) -> Document | str:
    try:
        return decoder(value)
    except RecordError as error:
        return error.reason
