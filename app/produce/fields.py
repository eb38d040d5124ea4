"""Fields of an object by name or dotted path, and conditions on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenmill.errors import InputError
from tokenmill.field_paths import find_field

Row = Mapping[str, Any]
Finder = Callable[[Row], Any]

_WORDS: Final = {True: "true", False: "false", None: "null"}


def finder(path: str) -> Finder:
    """Return a function that finds a field in an object by the rule of `tokenmill.field_paths`; None if not there."""
    if "." not in path:
        return lambda row: row.get(path)
    return lambda row: find_field(row, path)


def columns_of(path: str) -> tuple[str, ...]:
    """Return the names that a table may give the column in which a field is found."""
    return (path, path.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Condition:
    """``field=value``: holds for objects whose field is that value, or a list that has it."""

    field: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Return the condition that ``field=value`` is.

        Raises:
            InputError: it is none.

        """
        field, equals, value = text.partition("=")
        if not field or not equals:
            raise InputError(f"{text!r} is no condition: write it as field=value, for example languages=Python")
        return cls(field, value)

    def holds(self, row: Row) -> bool:
        """Tell whether the object is wanted; numbers compare as JSON writes them, and so do true, false and null."""
        found = finder(self.field)(row)
        return (
            any(word(value) == self.value for value in found) if isinstance(found, list) else word(found) == self.value
        )


def word(value: object) -> str:
    """Return a value as text, for people: true, false and null as JSON has them."""
    return _WORDS[value] if value is None or isinstance(value, bool) else str(value)
