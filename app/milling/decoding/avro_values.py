"""Mode ``avro``: framed values in Avro's binary encoding, read by the schema that they were written with.

A logical type comes out as its underlying type (a timestamp is a number, a decimal is bytes), an enum as its symbol, a
union as the value in it. Of a schema only its structure is used. Names of any characters, defaults, aliases and logical
types, valid or not, decide nothing: registries hold schemas that libraries refuse for these. Each value that is read is
counted, so that a few bytes cannot ask for any number of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from struct import Struct
from typing import Any, Final, TypeAlias

from tokenmill.errors import RecordError

from .framed_values import Reader, RegisteredSchema, mismatch, schema_json
from .protocol import INVALID_UTF8, TOO_DEEP, DecodingRules

MAX_RECURSION: Final = 64
"""The deepest nesting of records, arrays and maps in values of a schema that contains itself."""
MAX_NESTING: Final = 128
"""The deepest nesting of a schema. Its reader calls itself at most twice a level; Python's stack holds 1,000 calls."""
_LONG: Final = (1 << 64) - 1
_COUNTED: Final = 1024
"""Values that are counted together before they are read: a block may claim billions, and end after one."""


def value_reader(schema: RegisteredSchema, rules: DecodingRules) -> Reader:
    """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
    types = _Types()
    for needed in schema.needed().values():
        types.reader(schema_json(needed.text))
    read = types.reader(schema_json(schema.text))
    levels = MAX_RECURSION if types.recursive else MAX_NESTING

    def value_of(payload: bytes) -> Any:
        source = _Source(payload, rules, levels)
        try:
            value = read(source)
        except IndexError:
            raise mismatch("they end too early, or choose what the schema does not have") from None
        if rest := len(payload) - source.at:
            raise mismatch(f"{rest} bytes follow the value")
        return value

    return value_of


class _Source:
    __slots__ = ("at", "data", "levels", "rules", "values")

    def __init__(self, data: bytes, rules: DecodingRules, levels: int) -> None:
        self.data, self.at = data, 0
        self.rules, self.values, self.levels = rules, rules.most_values, levels

    def begin(self) -> None:
        """Begin a record, array or map, in which further ones may be; it ends with ``levels`` one higher again."""
        if self.levels == 0:
            raise RecordError(TOO_DEEP, f"nested over {MAX_RECURSION} deep, by a schema that contains itself")
        self.levels -= 1

    def count(self, values: int) -> None:
        """Count values that are read next: they may take no bytes."""
        self.values -= values
        if self.values < 0:
            raise self.rules.too_many_values()

    def take(self, size: int) -> bytes:
        """Return the next bytes; `IndexError` where there are fewer."""
        at, self.at = self.at, self.at + size
        if not at <= self.at <= len(self.data):
            raise IndexError
        return self.data[at : self.at]


_Read: TypeAlias = Callable[[_Source], Any]


def _long(source: _Source) -> int:
    data, at, number, shift = source.data, source.at, 0, 0
    while (byte := data[at]) > 0x7F:  # noqa: PLR2004 - the last byte of a number has no highest bit
        number |= (byte & 0x7F) << shift
        shift = (shift + 7) & 63  # bytes beyond the tenth mean nothing; so they came out of compiled code, for ever
        at += 1
    number = (number | byte << shift) & _LONG
    source.at = at + 1
    return (number >> 1) ^ -(number & 1)


def _index(source: _Source) -> int:
    number = _long(source)
    if number < 0 and not source.rules.lenient:
        raise IndexError
    return number


def _string(source: _Source) -> str:
    try:
        return source.take(_long(source)).decode()
    except UnicodeDecodeError as error:
        raise RecordError(INVALID_UTF8, f"a string is no UTF-8: {error.reason}") from None


def _entries(source: _Source) -> Iterator[None]:
    """Yield for each value in an array or map; it is read meanwhile."""
    while count := _long(source):
        if count < 0:
            _long(source)  # the block's bytes
        for begin in range(0, abs(count), _COUNTED):
            several = min(_COUNTED, abs(count) - begin)
            source.count(several)
            yield from repeat(None, several)


_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_PRIMITIVES: Final[Mapping[str, _Read]] = {
    "null": lambda _: None,
    "boolean": lambda source: source.take(1) != b"\0",
    "int": _long,
    "long": _long,
    "float": lambda source: _FLOAT.unpack(source.take(4))[0],
    "double": lambda source: _DOUBLE.unpack(source.take(8))[0],
    "bytes": lambda source: source.take(_long(source)),
    "string": _string,
}


@dataclass(slots=True)
class _Types:
    recursive: bool = False
    _named: dict[str, _Read] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def reader(self, schema: Any, namespace: str = "", level: int = 0) -> _Read:
        if level > MAX_NESTING:
            raise ValueError(f"it is nested over {MAX_NESTING} deep")
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._known(schema, namespace)
        if isinstance(schema, list):
            if any(isinstance(branch, list) for branch in schema):
                raise ValueError("it has a union directly in a union")
            branches = [self.reader(branch, namespace, level + 1) for branch in schema]
            return lambda source: branches[_index(source)](source)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError("it is no Avro schema, or a part of it is none: it has no type")
        make = {"record": self._record, "error": self._record, "enum": self._enum, "fixed": self._fixed}
        make |= {"array": self._array, "map": self._map}
        kind = schema["type"]
        if isinstance(kind, str) and kind in make:
            return make[kind](schema, namespace, level + 1)
        return self.reader(kind, namespace, level + 1)

    def _known(self, name: str, namespace: str) -> _Read:
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self._named:
                self.recursive |= full in self._open
                return self._named[full]
        raise ValueError(f"it has no type {name!r}")

    def _define(self, schema: Mapping[str, Any], namespace: str, read: _Read) -> tuple[str, str]:
        """Take note of a named type; return its full name, and the namespace of the names in it."""
        name, own = str(schema.get("name", "")), schema.get("namespace")
        if "." in name:
            namespace, _, name = name.rpartition(".")
        elif isinstance(own, str):
            namespace = own
        full = f"{namespace}.{name}" if namespace else name
        self._named[full] = read
        return full, namespace

    def _record(self, schema: Mapping[str, Any], namespace: str, level: int) -> _Read:
        fields: list[tuple[str, _Read]] = []

        def read(source: _Source) -> dict[str, Any]:
            source.begin()
            source.count(len(fields))
            value = {name: part(source) for name, part in fields}
            source.levels += 1
            return value

        full, namespace = self._define(schema, namespace, read)
        self._open.add(full)
        fields += [(str(one["name"]), self.reader(one["type"], namespace, level)) for one in schema["fields"]]
        self._open.discard(full)
        return read

    def _enum(self, schema: Mapping[str, Any], namespace: str, _: int) -> _Read:
        symbols = [str(symbol) for symbol in schema["symbols"]]

        def read(source: _Source) -> str:
            return symbols[_index(source)]

        self._define(schema, namespace, read)
        return read

    def _fixed(self, schema: Mapping[str, Any], namespace: str, _: int) -> _Read:
        size = schema["size"]
        if type(size) is not int or size < 0:
            raise ValueError(f"a type of fixed size has the size {size!r}")

        def read(source: _Source) -> bytes:
            return source.take(size)

        self._define(schema, namespace, read)
        return read

    def _array(self, schema: Mapping[str, Any], namespace: str, level: int) -> _Read:
        item = self.reader(schema["items"], namespace, level)

        def read(source: _Source) -> list[Any]:
            source.begin()
            value = [item(source) for _ in _entries(source)]
            source.levels += 1
            return value

        return read

    def _map(self, schema: Mapping[str, Any], namespace: str, level: int) -> _Read:
        entry = self.reader(schema["values"], namespace, level)

        def read(source: _Source) -> dict[str, Any]:
            source.begin()
            value = {_string(source): entry(source) for _ in _entries(source)}
            source.levels += 1
            return value

        return read
