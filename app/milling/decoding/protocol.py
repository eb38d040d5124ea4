"""What every decoder promises: its answers, the closed set of its reasons, and the rules that decoders have had.

A recipe says by which rules its stream is decoded (``{"name": "decode", "rules": 4}`` in its ``steps``), and a stream
keeps them for good. What is bounded is counted, never timed: a value is a document on every machine, or on none.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tokenmill.documents import OVER_A_LIMIT, Document
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns


class Decoded(NamedTuple):
    """What many values are."""

    documents: DocumentColumns
    refused: list[tuple[int, RecordError]]
    """The indices of all other values, ascending, each with the reason."""


class Decoder(ABC):
    """Turns a record's value into a document, or says why it cannot be one."""

    __slots__ = ()

    @abstractmethod
    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return, as JSON types, what decides the answers apart from the recipe's settings: a version, mostly.

        It comes before the steps in the recipe, so the fingerprint covers it; it is empty if it never changed.
        """

    @abstractmethod
    def __call__(self, value: bytes) -> Document:
        """Return the document that ``value`` is; the answer depends on ``value`` alone, for any bytes.

        Raises RecordError where it is none, with one of the reasons in `REASONS` or of a user's function; nothing else.
        """

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Decode each value by itself."""
        return one_by_one(self, values)


def one_by_one(
    decoder: Callable[[bytes], Document], values: Sequence[bytes], before: Callable[[int], None] | None = None
) -> Decoded:
    """Call ``decoder`` for each value, and ``before`` with its index before."""
    decoded = Decoded(DocumentColumns(), [])
    for index, value in enumerate(values):
        if before is not None:
            before(index)
        try:
            decoded.documents.append(decoder(value))
        except RecordError as error:
            decoded.refused.append((index, error))
    return decoded


INVALID_UTF8: Final = "invalid_utf8"
MALFORMED_JSON: Final = "malformed_json"
"""No JSON by RFC 8259, or a number that no double can hold."""
TOO_DEEP: Final = "too_deep"
"""Arrays and objects are nested deeper than `MAX_DEPTH`."""
INVALID_UNICODE: Final = "invalid_unicode"
"""A ``\\u`` escape is half a surrogate pair, which is no character and has no UTF-8 form."""
NOT_AN_OBJECT: Final = "not_an_object"
"""JSON, but an array or a scalar."""
MISSING_TEXT: Final = "missing_text"
DEBEZIUM_ENVELOPE: Final = "debezium_envelope"
"""A change event of Debezium without any of the text fields: the row is inside, if there is one."""
WRONG_TYPE: Final = "wrong_type"
"""The text is no string, or a carried field is an array, an object, bytes, or no finite number."""
NOT_FRAMED: Final = "not_framed"
"""No zero byte and id of a schema before the value, where ``decode`` says that there are."""
SCHEMA_MISMATCH: Final = "schema_mismatch"
"""The bytes are no value of the schema whose id they have, or the schema is of another kind than ``decode`` says."""
INTEGER_OUT_OF_RANGE: Final = "integer_out_of_range"
UNUSABLE_SCHEMA: Final = "unusable_schema"
"""The schema whose id the bytes have cannot be used: it is invalid, or too large, or its values cannot be bounded."""
TOO_MANY_VALUES: Final = "too_many_values"
"""The bytes hold more values (items, entries, fields) than the rules allow."""
TOO_MANY_STEPS: Final = "too_many_steps"
"""Validating the value by its schema may take more steps than the rules allow."""
SCHEMA_REGISTRY_FRAMING: Final = "schema_registry_framing"
"""Mode ``auto``: the value begins as serializers of a schema registry begin it, with a zero byte and a schema's id."""
CONTROL_CHARACTERS: Final = "control_characters"
"""Mode ``auto``: NULs, or so many control characters that it is no text."""

_OF_TEXT: Final = (INVALID_UTF8, CONTROL_CHARACTERS, SCHEMA_REGISTRY_FRAMING)
_OF_JSON: Final = (MALFORMED_JSON, TOO_DEEP, INVALID_UNICODE, NOT_AN_OBJECT, INTEGER_OUT_OF_RANGE, TOO_MANY_VALUES)
_OF_OBJECTS: Final = (MISSING_TEXT, DEBEZIUM_ENVELOPE, WRONG_TYPE)
_OF_SCHEMAS: Final = (NOT_FRAMED, SCHEMA_MISMATCH, UNUSABLE_SCHEMA, TOO_MANY_STEPS)
REASONS: Final = frozenset((*OVER_A_LIMIT, *_OF_TEXT, *_OF_JSON, *_OF_OBJECTS, *_OF_SCHEMAS))

MAX_DEPTH: Final = 1024
"""The deepest nesting that the parser (orjson) follows: it recurses in C, and this keeps the stack bounded."""


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """What decides a decoder's answers, apart from its settings."""

    number: int
    """In a recipe; raised when any answer changes (docs/record_to_tokens.md has the history)."""
    most_values: int
    """Most items, entries and fields of one record, at all depths: each takes up to 200 bytes of memory."""
    most_steps: int | None
    """Most steps that validating one record may take (`milling.decoding.json_schema_values`); None: any number."""
    most_schema_characters: int
    """Most characters of a schema with all that it refers to. Compilers of schemas are slow with large ones."""
    scalars_are_text: bool
    """Whether mode ``auto`` takes JSON that is no object or array for plain text."""
    lenient: bool
    """Whether Avro's branches and symbols are counted from the end by a number below zero, and a cut-off object in a
    JSON string is a text where escaped white space is in front of it or in it."""

    def too_many_values(self) -> RecordError:
        """Return the error for a record that would be decoded to more than `most_values`."""
        why = f"it holds over {self.most_values:,} values: send its parts as records of their own"
        return RecordError(TOO_MANY_VALUES, why)


RULES: Final = DecodingRules(4, 1_000_000, 5_000_000, 1 << 18, scalars_are_text=False, lenient=False)
"""Those of new streams. A million values are 200 MB, and a record of so many is read within seconds."""
KNOWN: Final = {
    2: DecodingRules(2, 50_000_000, None, 1 << 24, scalars_are_text=True, lenient=True),
    3: replace(RULES, number=3, lenient=True),
    4: RULES,
}
"""All that streams may have. Rules 2 had no bounds: these are beyond what a worker's memory could take then."""
VALUE_RULES: Final = {2: 1, 3: 2, 4: 2}
"""What else a recipe says of values of a schema registry (docs/kafka_teams.md)."""
BOM: Final = b"\xef\xbb\xbf"
"""UTF-8's byte order mark: some programs begin a file with it; it is no part of the text."""


def decode_utf8(value: bytes) -> str:
    """Return the text of strict UTF-8; RecordError with ``invalid_utf8`` and the first byte that fits nowhere."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordError(INVALID_UTF8, f"byte {error.start} is no UTF-8: {error.reason}") from None
