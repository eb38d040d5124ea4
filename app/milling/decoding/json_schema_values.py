"""Mode ``json_schema``: framed JSON, which must satisfy its JSON Schema.

A schema without ``$schema`` is of draft 7, as those of Confluent's serializers are. Formats are not checked: which
texts are dates or addresses changes with the library.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions

from tokenmill.errors import RecordError

from .framed_values import Reader, RegisteredSchema, mismatch
from .reasons import TOO_MANY_STEPS
from .refusals import parsed_json
from .rules import DecodingRules
from .schema_cost import BACKTRACKS, SchemaCost

_SHOWN_CHARACTERS: Final = 200
_ROOT: Final = "json-schema:///"
"""The address that the library gives a schema without one."""


class JsonSchemaFormat:
    """JSON Schema, by jsonschema-rs."""

    kind = "JSON"
    is_json = True

    def reader(self, schema: RegisteredSchema, rules: DecodingRules) -> Reader:
        """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
        parsed = _with_draft(json.loads(schema.text))
        needed = [(name, json.loads(one.text)) for name, one in schema.needed().items()]
        cost = _cost(parsed, needed, rules)
        most = rules.most_steps
        validator = jsonschema_rs.validator_for(
            parsed,
            registry=jsonschema_rs.Registry(needed, draft=jsonschema_rs.Draft7, retriever=_refuse),
            retriever=_refuse,
            validate_formats=False,
            pattern_options=None if most is None else FancyRegexOptions(backtrack_limit=BACKTRACKS),
        )

        def value_of(payload: bytes) -> Any:
            value = parsed_json(payload, rules)
            if most is not None and cost is not None and cost.of_value(value, payload, most) > most:
                raise RecordError(TOO_MANY_STEPS, f"validating it by its schema may take over {most:,} steps")
            if not validator.is_valid(value):
                raise mismatch(_where(validator, value) if cost is not None and not cost.returns else _SOMEWHERE)
            return value

        return value_of


def _cost(schema: Any, needed: Sequence[tuple[str, Any]], rules: DecodingRules) -> SchemaCost | None:
    """Return what a schema costs; None where that cannot be told, and the rules do not ask."""
    known = jsonschema_rs.Registry([*needed, (_ROOT, schema)], draft=jsonschema_rs.Draft7, retriever=_refuse)
    try:
        return SchemaCost.of(schema, known.resolver(_ROOT))
    except (ValueError, jsonschema_rs.ReferencingError):
        if rules.most_steps is None:
            return None
        raise


def _with_draft(schema: Any) -> Any:
    if isinstance(schema, dict) and "$schema" not in schema:
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return schema


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri}, which is not among its references in the registry")


def _where(validator: jsonschema_rs.Validator, value: Any) -> str:
    """Return which rule is broken, and where; not the value, which may be the text.

    The library repeats for this what it remembers otherwise: a schema that contains itself would make it endless.
    """
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        path = "/".join(map(str, error.instance_path))[:_SHOWN_CHARACTERS]
        rule = "/".join(map(str, error.schema_path))[:_SHOWN_CHARACTERS]
        return f"at /{path} it breaks the rule /{rule}"
    except ValueError:  # it is nested too deep for the library's messages
        return _SOMEWHERE
    return _SOMEWHERE


_SOMEWHERE: Final = "it breaks one of its rules"
