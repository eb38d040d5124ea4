"""Values as Confluent's serializers frame them: a zero byte, the id of a schema in a registry, and the encoded value.

The schema of an id never changes, so a document is still a function of the value's bytes alone. Each schema is fetched
once; while it cannot be fetched, nothing is guessed. Modes ``avro`` (`avro_values.py`), ``protobuf``
(`protobuf_values.py`) and ``json_schema`` (`json_schema_values.py`) say how a schema's values are read; all of them
become a mapping of plain values, of which `ObjectFields` takes the text, the id and the carried fields.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

from tokenmill.documents import Document
from tokenmill.errors import RecordError, RegistryError
from tokenmill.stages.decoding.json_objects import ObjectFields, no_text
from tokenmill.stages.decoding.protocol import Decoded, one_by_one
from tokenmill.stages.decoding.reasons import NOT_AN_OBJECT, NOT_FRAMED, RULES, SCHEMA_MISMATCH

VALUE_RULES: Final = 1
"""Version of the rules for values (docs/kafka_teams.md); a change of any answer raises it."""
_FRAME: Final = Struct(">bi")
"""Magic byte and id: registries count their schemas in Java's int."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry has it under an id."""

    kind: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``, as registries name them."""
    text: str
    references: tuple[tuple[str, "RegisteredSchema"], ...] = ()
    """The schemas that it refers to, each under the name that it uses; they may have references of their own."""

    def needed(self) -> dict[str, "RegisteredSchema"]:
        """Return all schemas that this one needs, by name, each after those that it needs itself."""
        found: dict[str, RegisteredSchema] = {}
        for name, schema in self.references:
            found |= {inner: one for inner, one in schema.needed().items() if inner not in found}
            found.setdefault(name, schema)
        return found


class SchemaSource(Protocol):
    """Whoever has schemas."""

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with that id; always the same one.

        Raises:
            RegistryError: it cannot be fetched now.

        """


Reader: TypeAlias = Callable[[bytes], Any]
"""Decodes the bytes after a frame by one schema into plain values: `dict`, `list`, `bytes` and scalars. Raises only
`RecordError`, where they do not fit the schema."""


class SchemaFormat(Protocol):
    """How the values of one kind of schema are read."""

    @property
    def kind(self) -> str:
        """The kind, as registries name it."""

    @property
    def is_json(self) -> bool:
        """Whether values are JSON, of which a parser may have rounded the numbers."""

    def reader(self, schema: RegisteredSchema) -> Reader:
        """Return the function that reads the values of a schema.

        Raises:
            ValueError: the schema cannot be used; says why.

        """


@dataclass(frozen=True, slots=True)
class FramedDecoder:
    """Takes a framed value whose schema makes it an object with a text; anything else is refused, with the reason.

    A schema that has not been learned (`learn`) is fetched while a value of it is decoded. Only then may decoding raise
    `RegistryError`.
    """

    fields: ObjectFields
    format: SchemaFormat
    source: SchemaSource
    _readers: dict[int, Reader] = field(default_factory=dict)

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the versions of the rules for objects, and of the rules by which values become objects."""
        return ({"name": "decode", "rules": RULES, "values": VALUE_RULES},)

    def __call__(self, value: bytes) -> Document:
        """Return the document; see `tokenmill.stages.decoding.reasons` for what is refused."""
        number = schema_number(value)
        if number is None:
            raise RecordError(
                NOT_FRAMED, "the value does not begin with a zero byte and the id of a schema, in 4 bytes and no sign"
            )
        if number not in self._readers:
            self.learn(number)
        parsed = self._readers[number](value[_FRAME.size :])
        if not isinstance(parsed, dict):
            raise RecordError(NOT_AN_OBJECT, f"schema {number} describes no record, but single values or a list")
        document = self.fields.document(parsed, value[_FRAME.size :] if self.format.is_json else None)
        if document is None:
            raise no_text(self.fields, parsed)
        return document

    def many(self, values: Sequence[bytes]) -> Decoded:
        """Decode each value."""
        return one_by_one(self, values)

    def unknown(self, values: Iterable[bytes]) -> list[int]:
        """Return the ids of the schemas that have not been learned and that some of the values have."""
        heads = {value[: _FRAME.size] for value in values}
        found = {number for head in heads if (number := schema_number(head)) is not None}
        return sorted(number for number in found if number not in self._readers)

    def learn(self, number: int) -> None:
        """Fetch a schema, so that its values can be decoded without a request.

        Raises:
            RegistryError: it cannot be fetched now, or cannot be used.

        """
        schema = self.source.schema(number)
        if schema.kind != self.format.kind:
            self._readers[number] = _of_another_kind(number, schema.kind, self.format.kind)
            return
        try:
            self._readers[number] = self.format.reader(schema)
        except ValueError as error:
            raise RegistryError(
                f"schema {number} cannot be used: {error}. Its records cannot be decoded by this version: skip them "
                "(`tokenmill skip`), or give them a topic of their own",
                definite=True,
            ) from error


def schema_number(value: bytes) -> int | None:
    """Return the id of a framed value's schema; None where it is not framed."""
    if len(value) < _FRAME.size:
        return None
    magic, number = _FRAME.unpack_from(value)
    return number if magic == 0 and number >= 0 else None


def mismatch(detail: str) -> RecordError:
    """Return the error for bytes that are no value of their schema."""
    return RecordError(SCHEMA_MISMATCH, f"the bytes do not fit their schema: {detail}")


def _of_another_kind(number: int, kind: str, wanted: str) -> Reader:
    def refuse(_: bytes) -> Mapping[str, Any]:
        raise RecordError(SCHEMA_MISMATCH, f"schema {number} is of the kind {kind}, and decode wants {wanted}")

    return refuse
