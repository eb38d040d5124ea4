"""Mode ``json_schema``: framed JSON, which must satisfy its JSON Schema.

A schema without ``$schema`` is of draft 7, as those of Confluent's serializers are. Formats are not checked: which
texts are dates or addresses changes with the library.
"""

import json
from typing import Any, Final, NoReturn

import jsonschema_rs
import orjson

from tokenmill.errors import RecordError
from tokenmill.stages.decoding.framed_values import Reader, RegisteredSchema, mismatch
from tokenmill.stages.decoding.reasons import TOO_DEEP
from tokenmill.stages.decoding.refusals import refusal

_SHOWN_CHARACTERS: Final = 200


class JsonSchemaFormat:
    """JSON Schema, by jsonschema-rs."""

    kind = "JSON"
    is_json = True

    def reader(self, schema: RegisteredSchema) -> Reader:
        """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
        try:
            parsed = json.loads(schema.text)
            needed = [(name, json.loads(one.text)) for name, one in schema.needed().items()]
            validator = jsonschema_rs.validator_for(
                _with_draft(parsed),
                registry=jsonschema_rs.Registry(needed, draft=jsonschema_rs.Draft7, retriever=_refuse),
                retriever=_refuse,
                validate_formats=False,
            )
        except (ValueError, TypeError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            why = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
            raise ValueError(f"it is no JSON Schema ({why})") from error

        def value_of(payload: bytes) -> Any:
            try:
                value = orjson.loads(payload)
            except orjson.JSONDecodeError:
                raise refusal(payload) from None
            try:
                validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                raise mismatch(_where(error)) from None
            except ValueError as error:
                raise RecordError(TOO_DEEP, str(error)[:_SHOWN_CHARACTERS]) from None
            return value

        return value_of


def _with_draft(schema: Any) -> Any:
    if isinstance(schema, dict) and "$schema" not in schema:
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return schema


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri}, which is not among its references in the registry")


def _where(error: jsonschema_rs.ValidationError) -> str:
    """Return which rule is broken, and where; not the value, which may be the text."""
    path = "/".join(map(str, error.instance_path))[:_SHOWN_CHARACTERS]
    rule = "/".join(map(str, error.schema_path))[:_SHOWN_CHARACTERS]
    return f"at /{path} it breaks the rule /{rule}"
