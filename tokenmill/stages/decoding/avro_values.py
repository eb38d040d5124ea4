"""Mode ``avro``: framed values in Avro's binary encoding, read by the schema that they were written with.

Values come out as they are stored: a logical type as its underlying type (a timestamp is a number, a decimal is bytes),
an enum as its symbol, a union as the value in it. So the result does not depend on a library's calendar types.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
from fastavro import _read_py as by_python

from tokenmill.errors import RecordError
from tokenmill.stages.decoding.framed_values import Reader, RegisteredSchema, mismatch
from tokenmill.stages.decoding.reasons import INVALID_UTF8, TOO_DEEP

MAX_RECURSION: Final = 64
"""The deepest nesting of values whose schema contains itself. fastavro's Python code reads these; it raises an error
far beyond this depth. Its compiled code would follow hostile bytes until the stack overflows and the process dies."""
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_BAD_SCHEMA: Final = (fastavro.schema.SchemaParseException, ValueError, TypeError, KeyError, AttributeError)
"""What fastavro raises for an invalid schema; `fastavro.schema.UnknownType` is a ValueError."""
_BAD_VALUE: Final = (EOFError, ValueError, IndexError, OverflowError, MemoryError, TypeError, KeyError)


class AvroFormat:
    """Avro, by fastavro."""

    kind = "AVRO"
    is_json = False

    def reader(self, schema: RegisteredSchema) -> Reader:
        """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
        named: dict[str, Any] = {}
        try:
            for needed in schema.needed().values():
                fastavro.parse_schema(stored(json.loads(needed.text)), named)
            parsed = fastavro.parse_schema(stored(json.loads(schema.text)), named)
        except _BAD_SCHEMA as error:
            raise ValueError(f"it is no Avro schema ({error})") from error
        shape = _Shape(named)
        if any(shape.is_empty(items) for items in shape.arrays(parsed)):
            raise ValueError("it has an array of items that take no bytes, so that a few bytes can hold any number")
        return _reader(_whole(parsed, named), recursive=shape.is_recursive(parsed))


def stored(schema: Any) -> Any:
    """Return a schema without its logical types, for which fastavro would convert the stored values."""
    if isinstance(schema, list):
        return [stored(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part if name in {"default", "aliases", "symbols"} else stored(part)
        for name, part in schema.items()
        if name != "logicalType"
    }


def _whole(parsed: Any, named: Mapping[str, Any]) -> Any:
    """Return a parsed schema with the definitions of all that it names, even where it consists of names alone."""
    if isinstance(parsed, list):
        return [_whole(part, named) for part in parsed]
    if isinstance(parsed, str) and parsed in named:
        return {**named[parsed], "__fastavro_parsed": True, "__named_schemas": dict(named)}
    return parsed


def _reader(parsed: Any, *, recursive: bool) -> Reader:
    read = by_python.schemaless_reader if recursive else fastavro.schemaless_reader

    def value_of(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        try:
            value = read(stream, parsed, None)
        except UnicodeDecodeError as error:
            raise RecordError(INVALID_UTF8, f"a string is no UTF-8: {error.reason}") from None
        except RecursionError:
            raise _too_deep() from None
        except _BAD_VALUE as error:
            raise mismatch(str(error)[:200] or "they end too early") from None
        if rest := len(payload) - stream.tell():
            raise mismatch(f"{rest} bytes follow the value")
        if recursive and _deeper(value, MAX_RECURSION):
            raise _too_deep()
        return value

    return value_of


def _too_deep() -> RecordError:
    return RecordError(TOO_DEEP, f"nested over {MAX_RECURSION} deep, by a schema that contains itself")


def _deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels == 0 or any(_deeper(part, levels - 1) for part in value.values())
    return isinstance(value, list) and (levels == 0 or any(_deeper(part, levels - 1) for part in value))


@dataclass(frozen=True, slots=True)
class _Shape:
    """Properties of a parsed schema."""

    named: Mapping[str, Any]

    def _parts(self, schema: Any) -> Iterator[Any]:
        """Yield the schemas directly in one, names resolved."""
        parts: list[Any] = []
        if isinstance(schema, list):
            parts = schema
        elif isinstance(schema, dict):
            kind = schema["type"]
            if kind in ("record", "error"):
                parts = [field["type"] for field in schema["fields"]]
            elif kind in ("array", "map"):
                parts = [schema["items" if kind == "array" else "values"]]
            elif isinstance(kind, (dict, list)):
                parts = [kind]
        for part in parts:
            yield self._resolved(part)

    def _resolved(self, schema: Any) -> Any:
        return self.named.get(schema, schema) if isinstance(schema, str) else schema

    def arrays(self, schema: Any, seen: frozenset[str] = frozenset()) -> Iterator[Any]:
        """Yield the schema of the items of each array."""
        schema = self._resolved(schema)
        name = _name(schema)
        if name in seen:
            return
        if isinstance(schema, dict) and schema["type"] == "array":
            yield schema["items"]
        for part in self._parts(schema):
            yield from self.arrays(part, seen | {name} if name else seen)

    def is_empty(self, schema: Any, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether values can take no bytes at all."""
        schema = self._resolved(schema)
        if isinstance(schema, str):
            return schema == "null"
        if isinstance(schema, list):
            return False  # the number of the branch takes one
        kind, name = schema["type"], _name(schema)
        if kind in ("record", "error"):
            return name in seen or all(self.is_empty(part, seen | {str(name)}) for part in self._parts(schema))
        if isinstance(kind, (dict, list)) or kind == "null":
            return self.is_empty(kind, seen)
        return bool(kind == "fixed" and schema["size"] == 0)

    def is_recursive(self, schema: Any, within: frozenset[str] = frozenset()) -> bool:
        """Return whether a value can contain values of its own schema."""
        schema = self._resolved(schema)
        name = _name(schema)
        if name is not None:
            if name in within:
                return True
            within |= {name}
        return any(self.is_recursive(part, within) for part in self._parts(schema))


def _name(schema: Any) -> str | None:
    if isinstance(schema, dict) and isinstance(schema["type"], str) and schema["type"] in _NAMED:
        return str(schema["name"])
    return None
