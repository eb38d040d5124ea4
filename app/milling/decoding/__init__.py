"""From a record's bytes to a document. A decoder is a pure function of the bytes and its own parameters.

``auto`` (`auto.py`) for any producer, ``json`` (`json_objects.py`) and ``text`` (`plain_text.py`) for strict ones;
``avro``, ``protobuf`` and ``json_schema`` (`framed_values.py`) where values name a schema of a registry;
``module:function`` (`custom.py`) for a user's own. A new format is one new module with a `Decoder`, and a line in
`open_decoder`.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, cast

from tokenmill.documents import Limits
from tokenmill.errors import SettingsError

from .auto import AutoDecoder
from .custom import FunctionDecoder, open_function_decoder
from .framed_values import FramedDecoder, RegisteredSchema, SchemaFormat, SchemaSource
from .json_objects import JsonDecoder, ObjectFields
from .plain_text import TextDecoder
from .protocol import KNOWN, REASONS, RULES, Decoder, one_by_one

__all__ = [
    "FORMATS",
    "MODES",
    "REASONS",
    "Decoder",
    "FramedDecoder",
    "FunctionDecoder",
    "RegisteredSchema",
    "SchemaSource",
    "one_by_one",
    "open_decoder",
]

FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "avro": ("avro_values", "AvroFormat"),
    "protobuf": ("protobuf_values", "ProtobufFormat"),
    "json_schema": ("json_schema_values", "JsonSchemaFormat"),
}
"""Modes whose values name a schema of a registry; module and class of each. They need libraries of an extra."""
MODES: Final = ("auto", "json", "text", *FORMATS)
"""Beside these, a mode is the import path of a function of the user's own, which has a colon."""


def open_decoder(
    mode: str,
    *,
    text_fields: Sequence[str],
    id_field: str,
    metadata_fields: Sequence[str],
    max_text_bytes: int,
    max_id_bytes: int,
    max_fields_bytes: int,
    schemas: SchemaSource | None = None,
    rules: int = RULES.number,
) -> Decoder:
    """Return the decoder of ``mode`` (one of `MODES`, or ``module:function``).

    The other arguments are explained in `ObjectFields` and `Limits`. ``rules`` is the number that a stream's recipe
    has; for one that this version does not know, the decoder has the newest, and says so (`Decoder.describe`).

    ``schemas`` is asked by the modes in `FORMATS`, by no other. Raises SettingsError: an unknown mode, no text field, a
    limit that nothing can pass, a function that cannot be used, no registry where the mode needs one, or a library that
    is not installed.
    """
    for name, limit in (("max_text_bytes", max_text_bytes), ("max_id_bytes", max_id_bytes)):
        if limit < 1:
            raise SettingsError(f"{name} = {limit}: set it to 1 or more")
    if max_fields_bytes < (len("{}") if metadata_fields else 0):
        raise SettingsError(f"max_fields_bytes = {max_fields_bytes}: set it so high that the carried fields fit")
    limits = Limits(max_text_bytes, max_id_bytes, max_fields_bytes)
    if mode == "text":
        return TextDecoder(limits)
    if ":" in mode:
        return open_function_decoder(mode, metadata_fields=metadata_fields, limits=limits)
    if not text_fields:
        raise SettingsError(f'text_fields is empty, but decode = "{mode}" needs one: name it, or set decode = "text"')
    fields = ObjectFields(tuple(text_fields), id_field, tuple(metadata_fields), limits)
    objects = JsonDecoder(fields, KNOWN.get(rules, RULES))
    if mode == "json":
        return objects
    if mode == "auto":
        return AutoDecoder(objects, TextDecoder(limits))
    if mode in FORMATS:
        return _open_framed(mode, objects, schemas)
    known = ", ".join(MODES)
    raise SettingsError(f'decode = "{mode}" is unknown: set it to one of {known}, or to a module:function of your own')


def _open_framed(mode: str, objects: JsonDecoder, schemas: SchemaSource | None) -> FramedDecoder:
    if schemas is None:
        raise SettingsError(f'decode = "{mode}" needs a schema registry: set schema_registry_url')
    module, name = FORMATS[mode]
    try:
        opened = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        raise SettingsError(
            f"decode = \"{mode}\" needs {lacking}: install it with pip install '.[registry]'"
        ) from error
    return FramedDecoder(objects.fields, cast("SchemaFormat", opened()), schemas, objects.rules)
