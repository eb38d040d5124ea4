"""From settings to a decoder."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, cast

from tokenmill.decoding.auto import AutoDecoder
from tokenmill.decoding.framed_values import FramedDecoder, SchemaFormat, SchemaSource
from tokenmill.decoding.json_objects import JsonDecoder, ObjectFields
from tokenmill.decoding.plain_text import TextDecoder
from tokenmill.decoding.protocol import Decoder
from tokenmill.documents import Limits
from tokenmill.errors import SettingsError

FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "avro": ("avro_values", "AvroFormat"),
    "protobuf": ("protobuf_values", "ProtobufFormat"),
    "json_schema": ("json_schema_values", "JsonSchemaFormat"),
}
"""Modes whose values name a schema of a registry; module and class of each. They need libraries of an extra."""
MODES: Final = ("auto", "json", "text", *FORMATS)


def open_decoder(
    mode: str,
    *,
    text_fields: Sequence[str],
    id_field: str,
    carry: Sequence[str],
    max_text_bytes: int,
    max_id_bytes: int,
    max_fields_bytes: int,
    schemas: SchemaSource | None = None,
) -> Decoder:
    """Return the decoder of ``mode`` (one of `MODES`); the other arguments are explained in `ObjectFields`, `Limits`.

    ``schemas`` is asked by the modes in `FORMATS`, by no other.

    Raises:
        SettingsError: an unknown mode, no text field, a limit that nothing can pass, no registry where the mode needs
            one, or a library that is not installed.

    """
    for name, limit in (("max_text_bytes", max_text_bytes), ("max_id_bytes", max_id_bytes)):
        if limit < 1:
            raise SettingsError(f"{name} = {limit}: set it to 1 or more")
    if max_fields_bytes < (len("{}") if carry else 0):
        raise SettingsError(f"max_fields_bytes = {max_fields_bytes}: set it so high that the carried fields fit")
    limits = Limits(max_text_bytes, max_id_bytes, max_fields_bytes)
    if mode == "text":
        return TextDecoder(limits)
    if not text_fields:
        raise SettingsError(f'text_fields is empty, but decode = "{mode}" needs one: name it, or set decode = "text"')
    fields = ObjectFields(tuple(text_fields), id_field, tuple(carry), limits)
    if mode == "json":
        return JsonDecoder(fields)
    if mode == "auto":
        return AutoDecoder(fields, TextDecoder(limits))
    if mode in FORMATS:
        if schemas is None:
            raise SettingsError(f'decode = "{mode}" needs a schema registry: set schema_registry_url')
        return FramedDecoder(fields, _open_format(mode), schemas)
    raise SettingsError(f'decode = "{mode}" is unknown: set it to one of {", ".join(MODES)}')


def _open_format(mode: str) -> SchemaFormat:
    module, name = FORMATS[mode]
    try:
        opened = getattr(import_module(f"{__package__}.{module}"), name)
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        raise SettingsError(
            f"decode = \"{mode}\" needs {lacking}: install it with pip install 'tokenmill[registry]'"
        ) from error
    return cast("SchemaFormat", opened())
