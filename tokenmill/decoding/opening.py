"""From settings to a decoder."""

from collections.abc import Sequence
from typing import Final

from tokenmill.decoding.auto import AutoDecoder
from tokenmill.decoding.custom import open_function_decoder
from tokenmill.decoding.json_objects import JsonDecoder, ObjectFields
from tokenmill.decoding.plain_text import TextDecoder
from tokenmill.decoding.protocol import Decoder
from tokenmill.documents import Limits
from tokenmill.errors import SettingsError

MODES: Final = ("auto", "json", "text")
"""Beside these, a mode is the import path of a function of the user's own, which has a colon."""


def open_decoder(
    mode: str,
    *,
    text_fields: Sequence[str],
    id_field: str,
    carry: Sequence[str],
    max_text_bytes: int,
    max_id_bytes: int,
    max_fields_bytes: int,
) -> Decoder:
    """Return the decoder of ``mode`` (one of `MODES`, or ``module:function``).

    The other arguments are explained in `ObjectFields` and `Limits`.

    Raises:
        SettingsError: an unknown mode, no text field, a limit that nothing can pass, or a function that cannot be used.

    """
    for name, limit in (("max_text_bytes", max_text_bytes), ("max_id_bytes", max_id_bytes)):
        if limit < 1:
            raise SettingsError(f"{name} = {limit}: set it to 1 or more")
    if max_fields_bytes < (len("{}") if carry else 0):
        raise SettingsError(f"max_fields_bytes = {max_fields_bytes}: set it so high that the carried fields fit")
    limits = Limits(max_text_bytes, max_id_bytes, max_fields_bytes)
    if mode == "text":
        return TextDecoder(limits)
    if ":" in mode:
        return open_function_decoder(mode, carry=carry, limits=limits)
    if not text_fields:
        raise SettingsError(f'text_fields is empty, but decode = "{mode}" needs one: name it, or set decode = "text"')
    fields = ObjectFields(tuple(text_fields), id_field, tuple(carry), limits)
    if mode == "json":
        return JsonDecoder(fields)
    if mode == "auto":
        return AutoDecoder(JsonDecoder(fields), TextDecoder(limits))
    known = ", ".join(MODES)
    raise SettingsError(f'decode = "{mode}" is unknown: set it to one of {known}, or to a module:function of your own')
