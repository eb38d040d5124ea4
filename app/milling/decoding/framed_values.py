"""Values as Confluent's serializers frame them: a zero byte, the id of a schema in a registry, and the encoded value.

The schema of an id never changes, so a document is still a function of the value's bytes alone. Each schema is fetched
once; while it cannot be fetched, nothing is guessed. `avro_values.py`, `protobuf_values.py` and `json_schema_values.py`
say how a schema's values are read; all of them become a mapping of plain values, for `ObjectFields`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from subprocess import SubprocessError
from typing import Any, Final, Protocol, TypeAlias

from tokenmill.documents import Document
from tokenmill.errors import RecordError, RegistryError

from ..foreign_code import NativeCode, shown_error
from . import protocol
from .plain_values import FRAME, ObjectFields, nesting

_LIBRARIES: Final = NativeCode("a library that reads schemas and their values")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry has it under an id."""

    kind: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``, as registries name them."""
    text: str
    references: tuple[tuple[str, "RegisteredSchema"], ...] = ()
    """The schemas that it refers to, by the name that it uses; they may have references of their own."""

    def needed(self) -> dict[str, "RegisteredSchema"]:
        """Return all schemas that this one needs, by name, each after those that it needs itself."""
        found: dict[str, RegisteredSchema] = {}
        seen: set[int] = set()  # by identity, those whose needs are there, for many may refer to one

        def add_needs_of(schema: RegisteredSchema) -> None:
            for name, one in schema.references:
                if id(one) not in seen:
                    seen.add(id(one))
                    add_needs_of(one)
                found.setdefault(name, one)

        add_needs_of(self)
        return found


class SchemaSource(Protocol):
    """A source of schemas by their ids."""

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with that id; always the same one.

        Raises RegistryError where it cannot be fetched now; ValueError where its references cannot be followed.
        """

    def subjects(self, number: int) -> str:
        """Return the names of the subjects that have the schema, for people; nothing where that cannot be told now."""


MOST_LEVELS: Final = 500
"""Levels of the JSON of a schema. Python's parser takes almost 1,000, with the calls that wait for it: without this
bound, the same schema could be read in one process and not in another."""


def schema_json(text: str) -> Any:
    """Return what the JSON of a schema stands for; `ValueError` where it is none, or nested over `MOST_LEVELS` deep."""
    depth = nesting(text.encode(errors="surrogatepass"))
    if depth > MOST_LEVELS:
        raise ValueError(f"it is nested {depth:,} deep, over {MOST_LEVELS}")
    return json.loads(text)


Reader: TypeAlias = Callable[[bytes], Any]
"""Decodes the bytes after a frame by one schema into plain values: `dict`, `list`, `bytes` and scalars. Raises
`RecordError`, or whatever else the bytes make a library raise."""
MakeReader: TypeAlias = Callable[[RegisteredSchema, protocol.DecodingRules], Reader]
"""Makes what reads the values of a schema within the bounds of the rules. Raises ValueError where the schema cannot be
used, as does anything else that a library raises; and OSError or SubprocessError where this machine could not do the
work, which says nothing about the schema."""


@dataclass(frozen=True, slots=True)
class FramedDecoder(protocol.Decoder):
    """Takes a framed value whose schema makes it an object with a text; anything else is refused, with the reason.

    A schema that was not learned is fetched (`learn`) while a value of it is decoded: that may raise `RegistryError`.
    """

    fields: ObjectFields
    kind: str
    """Of the schemas, as registries name it; values of ``JSON`` are that, and their numbers may have been rounded."""
    make_reader: MakeReader
    source: SchemaSource
    rules: protocol.DecodingRules = protocol.RULES
    _readers: dict[int, Reader] = field(default_factory=dict)

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the versions of the rules for objects, and of the rules by which values become objects."""
        return ({"name": "decode", "rules": self.rules.number, "values": protocol.VALUE_RULES[self.rules.number]},)

    def __call__(self, value: bytes) -> Document:
        """Return the document; see `milling.decoding.protocol` for what is refused."""
        number = schema_number(value)
        if number is None:
            raise RecordError(
                protocol.NOT_FRAMED,
                "the value does not begin with a zero byte and the id of a schema, in 4 bytes and no sign",
            )
        if number not in self._readers:
            self.learn(number)
        payload = value[FRAME.size :]
        parsed = self._parsed(number, payload)
        if not isinstance(parsed, dict):
            raise RecordError(
                protocol.NOT_AN_OBJECT, f"schema {number} describes no record, but single values or a list"
            )
        return self.fields.document(parsed, payload if self.kind == "JSON" else None)

    def unknown(self, values: Iterable[bytes]) -> list[int]:
        """Return the ids of the schemas that some of the values have, and that have not been learned."""
        heads = {value[: FRAME.size] for value in values}
        found = {number for head in heads if (number := schema_number(head)) is not None}
        return sorted(number for number in found if number not in self._readers)

    def learn(self, number: int) -> None:
        """Fetch a schema, so that its values can be decoded without a request; of an unusable one, all are refused.

        Raises RegistryError where it cannot be fetched now, or this machine cannot work on it; and MemoryError.
        """
        try:
            with _LIBRARIES:
                self._readers[number] = self._reader(number)
        except (MemoryError, RegistryError):
            raise
        except (OSError, SubprocessError) as error:
            raise RegistryError(
                f"schema {number} cannot be prepared on this machine now ({shown_error(error)}): look after it"
            ) from error
        except Exception as error:  # noqa: BLE001 - whatever a library raises over a schema belongs to it alone
            why = shown_error(error).removeprefix("ValueError: ")
            self._readers[number] = self._refusing(number, protocol.UNUSABLE_SCHEMA, f"cannot be used: {why}")

    def _reader(self, number: int) -> Reader:
        schema = self.source.schema(number)
        if schema.kind != self.kind:
            what = f"is of the kind {schema.kind}, and decode wants {self.kind}"
            return self._refusing(number, protocol.SCHEMA_MISMATCH, what)
        size = len(schema.text) + sum(len(one.text) for one in schema.needed().values())
        if size > self.rules.most_schema_characters:
            raise ValueError(f"it has {size:,} characters, over {self.rules.most_schema_characters:,}")
        return self.make_reader(schema, self.rules)

    def _refusing(self, number: int, reason: str, why: str) -> Reader:
        subjects = self.source.subjects(number)
        detail = f"schema {number}{f' of {subjects}' if subjects else ''} {why}"

        def refuse(_: bytes) -> Mapping[str, Any]:
            raise RecordError(reason, detail)

        return refuse

    def _parsed(self, number: int, payload: bytes) -> Any:
        """Return what a reader makes of the bytes; of all that it may raise, only lack of memory is no fact of them."""
        try:
            with _LIBRARIES:
                return self._readers[number](payload)
        except (MemoryError, RecordError):
            raise
        except RecursionError:
            raise RecordError(protocol.TOO_DEEP, f"values of schema {number} are nested too deep in it") from None
        except Exception as error:  # whatever a library raises over bytes belongs to this record alone
            raise mismatch(shown_error(error)) from error


def schema_number(value: bytes) -> int | None:
    """Return the id of a framed value's schema; None where it is not framed."""
    if len(value) < FRAME.size:
        return None
    magic, number = FRAME.unpack_from(value)
    return number if magic == 0 and number >= 0 else None


def mismatch(detail: str) -> RecordError:
    """Return the error for bytes that are no value of their schema."""
    return RecordError(protocol.SCHEMA_MISMATCH, f"the bytes do not fit their schema: {detail}")
