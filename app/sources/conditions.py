"""Fields of an object, and conditions on them (``--where``): read strictly, and never evaluated as code."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from operator import ge, gt, le, lt, methodcaller
from typing import Any, Final, NamedTuple

from tokenmill.errors import InputError

from ..milling.decoding.plain_values import find_field, path_parts

Row = Mapping[str, Any]
Finder = Callable[[Row], Any]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_LONGEST_NUMBER: Final = 400
"""Characters: more than any 64-bit integer or float has, and few enough for Python to parse."""
_WORDS: Final = {True: "true", False: "false", None: "null"}
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_CONDITION: Final = re.compile(
    rf"""\s*(?P<field>{_STRING}|[^=<>!]+?)\s*
    (?:(?P<sign>==|!=|<=|>=|=|<|>)|(?<=\s)(?P<within>(?:not\s+)?in)(?=[\s(\["]))
    \s*(?P<value>.*?)\s*""",
    re.DOTALL | re.VERBOSE,
)
_LISTED: Final = re.compile(rf"\s*(?P<value>{_STRING}|[^,\"]*?)\s*(?:,|$)")
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_BRACKETS: Final = {"(": ")", "[": "]"}
HOW: Final = (
    "write it as field=value, for example languages=Python; or with !=, <, <=, >, >=: score>=0.5; or as a list: "
    "lang in en,de (or not in); what has such characters in it goes into double quotes"
)


def finder(path: str) -> Finder:
    """Return a function that finds a field in an object as `find_field` does; None if not there."""
    # No functions of ours: these go to other processes, and the first one costs nothing in Python.
    return methodcaller("get", path) if "." not in path else partial(find_field, path=path)


def columns_of(path: str) -> tuple[str, ...]:
    """Return the names that a table may give the column in which a field is found."""
    return (path, path_parts(path)[0])


def word(value: object) -> str:
    """Return a value as text, for people: true, false and null as JSON has them."""
    return _WORDS[value] if value is None or isinstance(value, bool) else str(value)


def number_in(text: str) -> int | float | None:
    """Return the number that a text is, as JSON writes it, or with a plus, or without a zero; None if it is none."""
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


class _Value(NamedTuple):
    text: str
    quoted: bool = False
    number: int | float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A comparison that objects can meet.

    ``value`` is what is written behind the operator: a word, a number, or a string in double quotes; behind ``in`` and
    ``not in``, several with commas. A word or number equals a field of which it is what JSON writes, and a number any
    number of that value; what is in quotes equals strings alone. In ``<`` and its like, a number compares with numbers,
    and with strings that are written as one (a csv file has nothing else); anything else with strings, character by
    character, as dates of ISO 8601 need it. A list meets a condition if one of its values does, and ``!=`` and ``not
    in`` if none is equal. A field that is not there, or null, meets none but ``= null``.
    """

    field: str
    value: str
    operator: str = "="
    _find: Finder = dataclasses.field(init=False, repr=False, compare=False)
    _values: tuple[_Value, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        several = self.operator.endswith("in")
        object.__setattr__(self, "_find", finder(self.field))
        object.__setattr__(self, "_values", tuple(_several(self.value)) if several else (_value(self.value),))

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Return the condition that a text is. Raises InputError where it is no condition; says how to write one."""
        try:
            return cls(*_parts(text))
        except ValueError as error:
            raise InputError(f"{text!r} is no condition ({error}): {HOW}") from error

    def holds(self, row: Row) -> bool:
        """Return whether the object meets the condition."""
        found = self._find(row)
        found = found if isinstance(found, list) else [found]
        if self.operator in _ORDERS:
            return any(_ordered(self.operator, one, self._values[0]) for one in found)
        equal = any(_equal(one, value) for one in found for value in self._values)
        if self.operator in ("!=", "not in"):
            return not equal and found != [None]
        return equal

    def missing(self, row: Row) -> bool:
        """Return whether the object lacks the field, or it is null."""
        return self._find(row) is None

    def deciding(self) -> list[str]:
        """Return the condition as JSON: equal for equal conditions, and for equality just field and value."""
        return [self.field, *([] if self.operator == "=" else [self.operator]), self.value]


def _parts(text: str) -> tuple[str, str, str]:
    found = _CONDITION.fullmatch(text)
    name = "" if found is None else found["field"].strip()
    if found is None or not name:
        raise ValueError("there is no field, or no comparison, in it")
    operator, value = " ".join((found["within"] or found["sign"]).split()), found["value"]
    mistaken = not value or value[:1] in ("=", "<", ">", "!")
    if operator == "=":
        mistaken = value[:1] in ("<", ">") and number_in(value[1:]) is not None  # =>5: it would be a text
    if mistaken:
        raise ValueError(f"{operator} is followed by {value[:1] or 'nothing'}")
    name = json.loads(name) if name.startswith('"') else name
    return name, value, "=" if operator == "==" else operator


def _value(text: str) -> _Value:
    if not text.startswith('"'):
        return _Value(text, number=number_in(text))
    try:
        return _Value(json.loads(text), quoted=True)
    except json.JSONDecodeError as error:
        raise ValueError("a value in double quotes must be all in them, with \\ before a quote inside") from error


def _several(text: str) -> list[_Value]:
    if text[:1] in _BRACKETS:
        if not text.endswith(_BRACKETS[text[0]]):
            raise ValueError("a bracket is not closed")
        text = text[1:-1]
    values, at = [], 0
    while at <= len(text):
        found = _LISTED.match(text, at)
        if found is None or not found["value"]:
            raise ValueError("a list has values with commas between them")
        values.append(_value(found["value"]))
        at = found.end() if found[0].endswith(",") else len(text) + 1
    return values


def _equal(found: object, value: _Value) -> bool:
    if isinstance(found, str):
        return found == value.text
    if value.quoted:
        return False
    same_number = value.number is not None and _is_number(found) and found == value.number
    return same_number or word(found) == value.text


def _ordered(operator: str, found: object, value: _Value) -> bool:
    compare = _ORDERS[operator]
    if value.number is not None:
        found = number_in(found) if isinstance(found, str) else found
        return _is_number(found) and compare(found, value.number)
    if found is None or isinstance(found, (bool, dict, list)) or _is_number(found):
        return False
    return compare(word(found), value.text)


def _is_number(value: object) -> bool:
    if isinstance(value, Decimal):
        return not value.is_nan()
    return isinstance(value, (int, float)) and not isinstance(value, bool)
