"""Mode ``json_schema``: framed JSON, which must satisfy its JSON Schema.

A schema without ``$schema`` is of draft 7, as those of Confluent's serializers are. Formats are not checked: which
texts are dates or addresses changes with the library.

How many steps validating a value takes at most is counted before, because the library counts none. A step is one
keyword, or one value in it, for one value of the record; it takes the library some 0.1 µs. The library goes through a
schema as through a tree, in which each reference is what it leads to. Only where that is a part that the reference is
in, the library begins again, once for each array or object.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn, Self

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions

from tokenmill.errors import RecordError

from .framed_values import Reader, RegisteredSchema, mismatch, schema_json
from .plain_values import most_values, parsed_json
from .protocol import TOO_MANY_STEPS, DecodingRules

_MOST: Final = 1_000_000  # steps for one value; no schema that people write is near
_DEEPEST: Final = 100
"""Parts in each other, behind references as well. This keeps the stacks of Python and of the library bounded."""
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_IN_OBJECTS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
)
_IN_ARRAYS: Final = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
_INTO: Final = _IN_OBJECTS | _IN_ARRAYS
"""Keywords whose schemas are for what is in a value; other schemas are for the value itself."""
_SCHEMAS: Final = _NAMED | _INTO | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
_TWICE: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
"""Keywords for which all other keywords of their schema are evaluated once more."""
_LISTS: Final = frozenset({"enum", "const", "required", "dependentRequired", "type"})
_DIVISION: Final = 500  # steps of ``multipleOf``, which divides exactly, whatever the numbers are
_BYTES_OF_A_STEP: Final = 256  # bytes of a string that are measured or compared in the time of a step
_STATES_OF_A_STEP: Final = 20  # states of a pattern that read a byte in that time
BACKTRACKS: Final = 500
"""Steps back that a pattern with assertions, or references to its groups, may take; others take none."""
_PARTS: Final = re.compile(
    r"(?P<wide>\\[pP])|\\.|\[(?:\\.|[^\]\\])*+\]|(?P<times>\{(\d{1,9})(?:,(\d{0,9}))?\})|.", re.DOTALL
)
"""A character of a pattern, a class of characters, or how often the part before is repeated."""


class _Target(NamedTuple):
    schema: Any
    again: bool  # the reference is in what it leads to


@dataclass(slots=True)
class _SchemaCost:
    """Counts the steps of one schema."""

    schema: Any
    steps: int = 0  # at most, for one value of a record among many
    returns: bool = False  # whether a reference is in what it leads to
    _sizes: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    """Of what references lead to, steps and part, by base address and reference."""
    _open: dict[tuple[str, str], Any] = field(default_factory=dict)
    _own: dict[int, int] = field(default_factory=dict)
    """Steps of the keywords of a part that have no parts; so with `_targets` by the part's identity."""
    _targets: dict[int, _Target] = field(default_factory=dict)
    _states: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Any, resolver: jsonschema_rs.Resolver) -> Self:
        """Return the cost of a schema; ``resolver`` finds what it refers to. ValueError where it has no bound."""
        cost = cls(schema)
        size = cost._size(schema, resolver, frozenset(), 0)
        cost.steps = size * size if cost.returns else size
        return cost

    def of_value(self, value: Any, data: bytes, most: int) -> int:
        """Return the most steps for a value, whose JSON is ``data``; exact only where they may be over ``most``."""
        bound = self.steps * (1 + len(data) // _BYTES_OF_A_STEP + most_values(data, most // self.steps))
        return bound if bound <= most else self._counted(value, most)

    def _size(self, schema: Any, resolver: jsonschema_rs.Resolver, here: frozenset[tuple[str, str]], depth: int) -> int:
        """Return the steps of a part; ``here`` has the references that led to it without going into the value."""
        if depth > _DEEPEST:
            raise ValueError(f"it is nested over {_DEEPEST} deep")
        if not isinstance(schema, dict):
            return 1
        resolver, own, inner = _based(schema, resolver), 1, 0
        for keyword, part in schema.items():
            if keyword in ("$dynamicRef", "$recursiveRef"):
                raise ValueError(f"it has {keyword}, behind which anything may be")
            if keyword == "$ref":
                inner += self._referred(schema, resolver, here, depth)
            elif keyword in _SCHEMAS:
                found = frozenset[tuple[str, str]]() if keyword in _INTO else here
                inner += sum(1 + self._size(one, resolver, found, depth + 1) for one in _schemas(keyword, part))
            else:
                own += _DIVISION if keyword == "multipleOf" else _values(part) if keyword in _LISTS else 1
            if own + inner > _MOST:
                raise ValueError(f"its parts, with those that references repeat, are over {_MOST:,}")
        self._own[id(schema)] = own
        patterns = sum(self._states_of(pattern) for pattern in _patterns(schema))
        return (own + inner) * (1 + bool(_TWICE & schema.keys())) + patterns * _BYTES_OF_A_STEP // _STATES_OF_A_STEP

    def _referred(
        self, schema: Mapping[str, Any], resolver: jsonschema_rs.Resolver, here: frozenset[tuple[str, str]], depth: int
    ) -> int:
        reference = str(schema["$ref"])
        key = (resolver.base_uri, reference)
        if key in here:
            raise ValueError(f"{reference} refers to itself without going into the value")
        if key in self._open:
            self._targets[id(schema)] = _Target(self._open[key], again=True)
            self.returns = True
            return 1
        if key not in self._sizes:
            if reference.startswith(("http://json-schema.org/", "https://json-schema.org/")):
                return 10_000
            found = resolver.lookup(reference)
            self._open[key] = target = found.contents
            self._sizes[key] = self._size(target, found.resolver, here | {key}, depth + 1), self._open.pop(key)
        size, target = self._sizes[key]
        self._targets[id(schema)] = _Target(target, again=False)
        return size

    def _counted(self, value: Any, most: int) -> int:
        """Return the steps for a value and all that is in it; or, beyond ``most``, some of them."""
        total, left = 0, [iter([(value, [(self.schema, 1)])])]
        while left and total <= most:
            found = next(left[-1], None)
            if found is None:
                left.pop()
                continue
            steps, into = self._here(*found, most)
            total += steps
            left.append(_inside(found[0], into))
        return total

    def _here(self, value: Any, parts: list[tuple[Any, int]], most: int) -> tuple[int, list[tuple[str, Any, int]]]:
        """Return the steps of parts for a value without what is in it; and what keywords go into it, how often."""
        total, into, left, remembered = 0, list[tuple[str, Any, int]](), [*parts], set[int]()
        names = value if isinstance(value, dict) else [value] if isinstance(value, str) else ()
        strings, length = len(names), sum(map(len, names))
        keywords = _IN_OBJECTS if isinstance(value, dict) else _IN_ARRAYS if isinstance(value, list) else frozenset()
        while left and total <= most:
            schema, times = left.pop()
            if not isinstance(schema, dict):
                total += times
                continue
            times *= 1 + bool(_TWICE & schema.keys())
            total += times * self._own[id(schema)] * (1 + length // _BYTES_OF_A_STEP)
            for pattern in _patterns(schema):
                total += times * (strings + self._states_of(pattern) * length // _STATES_OF_A_STEP)
            for keyword, part in schema.items():
                if keyword in keywords:
                    into.append((keyword, part, times))
                elif keyword in _SCHEMAS and keyword not in _INTO:
                    left += [(one, times) for one in _schemas(keyword, part)]
            target = self._targets.get(id(schema))
            if target is not None and not (keywords and target.again and id(target.schema) in remembered):
                left.append((target.schema, 1 if keywords and target.again else times))
                remembered |= {id(target.schema)} if target.again else set()
        return total, into

    def _states_of(self, pattern: str) -> int:
        if pattern not in self._states:
            self._states[pattern] = _states(pattern)
        return self._states[pattern]


def _based(schema: Mapping[str, Any], resolver: jsonschema_rs.Resolver) -> jsonschema_rs.Resolver:
    """Return the resolver for references in a part, which may have an address of its own."""
    address = schema.get("$id", schema.get("id"))
    if not isinstance(address, str) or address.startswith("#"):
        return resolver
    try:
        return resolver.lookup(address).resolver
    except jsonschema_rs.ReferencingError:
        return resolver


def _schemas(keyword: str, part: Any) -> Iterable[Any]:
    if keyword in _NAMED and isinstance(part, dict):
        return part.values()
    return part if isinstance(part, list) else [part]


def _inside(value: Any, into: list[tuple[str, Any, int]]) -> Iterator[tuple[Any, list[tuple[Any, int]]]]:
    """Yield what is in a value, each with the schemas that are for it, and how often each is evaluated."""
    if not into:
        return
    for name, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield one, [(schema, times) for keyword, part, times in into for schema in _for(keyword, part, name)]
        names = [(part, times) for keyword, part, times in into if keyword == "propertyNames"]
        if names:
            yield name, names


def _for(keyword: str, part: Any, name: str | int) -> Iterable[Any]:
    if keyword == "properties" and isinstance(part, dict):
        return [part[name]] if name in part else ()
    if isinstance(part, list) and isinstance(name, int):
        return part[name : name + 1]
    return () if keyword == "propertyNames" else _schemas(keyword, part)


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    if isinstance(schema.get("patternProperties"), dict):
        yield from schema["patternProperties"]


def _values(part: Any) -> int:
    count, left = 0, [part]
    while left:
        one = left.pop()
        count += 1
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return count


def _states(pattern: str) -> int:
    sizes, last = [0], 0
    for part in _PARTS.finditer(pattern):
        if part["times"]:
            last *= max(int(part[3]), int(part[4] or 0), 1) - 1
        elif part[0] == "(":
            sizes.append(0)
            continue
        elif part[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
        else:
            last = 100 if part["wide"] else 1 + len(part[0]) // 4  # a class of Unicode
        sizes[-1] += last
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions())
    except jsonschema_rs.ValidationError:
        return sum(sizes) * 50  # it reads a string so many times, in the worst case
    return sum(sizes)


_SHOWN_CHARACTERS: Final = 200
_ROOT: Final = "json-schema:///"  # the address that the library gives a schema without one


def value_reader(schema: RegisteredSchema, rules: DecodingRules) -> Reader:
    """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
    parsed = schema_json(schema.text)
    if isinstance(parsed, dict):
        parsed = {"$schema": "http://json-schema.org/draft-07/schema#", **parsed}
    needed = [(name, schema_json(one.text)) for name, one in schema.needed().items()]
    most = rules.most_steps
    known = jsonschema_rs.Registry([*needed, (_ROOT, parsed)], draft=jsonschema_rs.Draft7, retriever=_refuse)
    try:
        cost = _SchemaCost.of(parsed, known.resolver(_ROOT))
    except (ValueError, jsonschema_rs.ReferencingError):
        if most is not None:
            raise
        cost = None  # it cannot be told, and the rules do not ask
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
