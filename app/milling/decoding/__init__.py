"""From a record's bytes to a document. A decoder is a pure function of the bytes and its own parameters.

``auto`` for any producer, ``json`` and ``text`` (`plain_values.py`); ``avro``, ``protobuf`` and ``json_schema``
(`framed_values.py`) where values name a schema of a registry; ``module:function`` for a user's own. A new format is one
new module with a `Decoder`, and a line in `open_decoder`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from tokenmill.documents import Document, Limits
from tokenmill.errors import RecordError, SettingsError
from tokenmill.recipe import Recipe

from ..foreign_code import UserFunction, open_user_function
from .framed_values import FramedDecoder, RegisteredSchema, SchemaSource
from .plain_values import AutoDecoder, JsonDecoder, ObjectFields, TextDecoder
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
    "avro": ("avro_values", "AVRO"),
    "protobuf": ("protobuf_values", "PROTOBUF"),
    "json_schema": ("json_schema_values", "JSON"),
}
"""Modes whose values name a schema of a registry; module of each, and kind of the schemas. They need an extra."""
MODES: Final = ("auto", "json", "text", *FORMATS)
"""Any other mode is the import path of a function of the user's own, which has a colon."""


@dataclass(frozen=True, slots=True)
class FunctionDecoder(Decoder):
    """Calls a user's function on a record's bytes, and lets only documents and known reasons out of it.

    `milling.foreign_code` has the rules; a reason (`REJECTED` for None, or for one that it does not declare),
    `FUNCTION_FAILED`, or a document over a limit is a RecordError.
    """

    function: UserFunction

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the import path and the version that the function's author states."""
        return ({"name": "decode", **self.function.describe()},)

    def __call__(self, value: bytes) -> Document:
        """Return the function's document; RecordError where its answer is none."""
        answer = self.function(value)
        if isinstance(answer, str):
            raise RecordError(answer, f"{self.function.path} (decode) returned this reason, or none that it declares")
        return answer


def open_decoder(recipe: Recipe, schemas: SchemaSource | None = None) -> Decoder:
    """Return the decoder of the recipe's ``decode`` (one of `MODES`, or ``module:function``), by the rules in it.

    For rules that this version does not know, the decoder has the newest, and says so (`Decoder.describe`). ``schemas``
    is asked by the modes in `FORMATS` alone. Raises SettingsError: an unknown mode, no text field, a limit that nothing
    can pass, a function that cannot be used, no registry where the mode needs one, or a library is missing.
    """
    mode, limits = recipe.decode, Limits.of(recipe)
    for name, limit in (("max_text_bytes", limits.max_text_bytes), ("max_id_bytes", limits.max_id_bytes)):
        if limit < 1:
            raise SettingsError(f"{name} = {limit}: set it to 1 or more")
    if limits.max_fields_bytes < (len("{}") if recipe.metadata_fields else 0):
        raise SettingsError(f"max_fields_bytes = {limits.max_fields_bytes}: set it so high that the carried fields fit")
    if mode == "text":
        return TextDecoder(limits)
    if ":" in mode:
        return FunctionDecoder(open_user_function("decode", recipe))
    if not recipe.text_fields:
        raise SettingsError(f'text_fields is empty, but decode = "{mode}" needs one: name it, or set decode = "text"')
    number = next((said["rules"] for said in recipe.decoder if "rules" in said), RULES.number)
    fields = ObjectFields(recipe.text_fields, recipe.id_field, recipe.metadata_fields, limits)
    objects = JsonDecoder(fields, KNOWN.get(number, RULES))
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
    module, kind = FORMATS[mode]
    try:
        make_reader = import_module(f"{__name__}.{module}").value_reader
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        how = "install it with pip install '.[registry]'"
        raise SettingsError(f'decode = "{mode}" needs {lacking}: {how}') from error
    return FramedDecoder(objects.fields, kind, make_reader, schemas, objects.rules)
