"""Fields of an object, by name or dotted path, and their values as text and number."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenmill.stages.field_paths import find_field

Row = Mapping[str, Any]
Finder = Callable[[Row], Any]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_LONGEST_NUMBER: Final = 400
"""Characters: more than any 64-bit integer or float has, and few enough for Python to take."""
_WORDS: Final = {True: "true", False: "false", None: "null"}


def finder(path: str) -> Finder:
    """Return a function that finds a field in an object as `tokenmill.stages.field_paths` says; None if not there."""
    if "." not in path:
        return lambda row: row.get(path)
    return lambda row: find_field(row, path)


def columns_of(path: str) -> tuple[str, ...]:
    """Return the names that a table may give the column in which a field is found."""
    return (path, path.partition(".")[0])


def word(value: object) -> str:
    """Return a value as text, for people: true, false and null as JSON has them."""
    return _WORDS[value] if value is None or isinstance(value, bool) else str(value)


def number_in(text: str) -> int | float | None:
    """Return the number that a text is, None if it is none: as JSON writes it, or with a plus, or without a zero."""
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)
