"""Why a value is no document: the closed set of dead-letter reasons that decoders give."""

from typing import Final

from tokenmill.documents import FIELDS_TOO_LONG, ID_TOO_LONG, TOO_LARGE

INVALID_UTF8: Final = "invalid_utf8"
"""The bytes are no UTF-8."""
MALFORMED_JSON: Final = "malformed_json"
"""No JSON by RFC 8259, or a number that no double can hold."""
TOO_DEEP: Final = "too_deep"
"""Arrays and objects are nested deeper than `MAX_DEPTH`."""
INVALID_UNICODE: Final = "invalid_unicode"
"""A ``\\u`` escape is half a surrogate pair, which is no character and has no UTF-8 form."""
NOT_AN_OBJECT: Final = "not_an_object"
"""JSON, but an array or a scalar."""
MISSING_TEXT: Final = "missing_text"
"""An object without any of the text fields."""
DEBEZIUM_ENVELOPE: Final = "debezium_envelope"
"""A change event of Debezium without any of the text fields: the row is inside, if there is one."""
WRONG_TYPE: Final = "wrong_type"
"""The text is no string, or a carried field is an array, an object, bytes, or no finite number."""
NOT_FRAMED: Final = "not_framed"
"""No zero byte and id of a schema before the value, where ``decode`` says that there are."""
SCHEMA_MISMATCH: Final = "schema_mismatch"
"""The bytes are no value of the schema whose id they have, or the schema is of another kind than ``decode`` says."""
INTEGER_OUT_OF_RANGE: Final = "integer_out_of_range"
"""The id, or a carried field, is an integer beyond 64 bits."""
UNUSABLE_SCHEMA: Final = "unusable_schema"
"""The schema whose id the bytes have cannot be used: it is invalid, or too large, or has what nobody can bound."""
TOO_MANY_VALUES: Final = "too_many_values"
"""The bytes hold more values (items, entries, fields) than the rules allow."""
TOO_MANY_STEPS: Final = "too_many_steps"
"""Validating the value by its schema may take more steps than the rules allow."""
SCHEMA_REGISTRY_FRAMING: Final = "schema_registry_framing"
"""Mode ``auto``: the value begins as serializers of a schema registry begin it, with a zero byte and a schema's id."""
CONTROL_CHARACTERS: Final = "control_characters"
"""Mode ``auto``: NULs, or so many control characters that it is no text."""

REASONS: Final = frozenset(
    {
        INVALID_UTF8,
        MALFORMED_JSON,
        TOO_DEEP,
        INVALID_UNICODE,
        NOT_AN_OBJECT,
        MISSING_TEXT,
        DEBEZIUM_ENVELOPE,
        WRONG_TYPE,
        NOT_FRAMED,
        SCHEMA_MISMATCH,
        INTEGER_OUT_OF_RANGE,
        UNUSABLE_SCHEMA,
        TOO_MANY_VALUES,
        TOO_MANY_STEPS,
        SCHEMA_REGISTRY_FRAMING,
        CONTROL_CHARACTERS,
        TOO_LARGE,
        ID_TOO_LONG,
        FIELDS_TOO_LONG,
    }
)

MAX_DEPTH: Final = 1024
"""The deepest nesting that the parser (orjson) follows: it recurses in C, and this keeps the stack bounded."""
