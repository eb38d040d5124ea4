"""Fields of an object by name or dotted path: one rule for the settings of a topic and for `tokenmill produce`.

A field's whole name goes first: ``meta.lang`` is the key of that name where the object has it, whatever its value, and
else ``lang`` in the object ``meta``. A part of a path that holds a dot itself stands in double quotes:
``attributes."log.message"``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

_PART: Final = re.compile(r'"([^"]+)"(?=\.|$)|([^.]+)')


@lru_cache(maxsize=256)
def path_parts(path: str) -> tuple[str, ...]:
    """Return the names of which a path is made, in order."""
    return tuple(quoted or plain for quoted, plain in _PART.findall(path)) if '"' in path else tuple(path.split("."))


def find_field(row: Mapping[str, Any], path: str, absent: Any = None) -> Any:
    """Return the field that ``path`` names from object to object, not into arrays; ``absent`` where there is none."""
    if path in row:
        return row[path]
    if "." not in path:
        return absent
    found: Any = row
    for part in path_parts(path):
        if not isinstance(found, Mapping) or part not in found:
            return absent
        found = found[part]
    return found


def quoted_path(row: Mapping[str, Any], path: str) -> str | None:
    """Return the path to a field whose own name is an end of ``path``, with its dots; None where there is none."""
    at, found = "", row
    while "." in path:
        if at and path in found:
            return f'{at}"{path}"'
        part, _, path = path.partition(".")
        if not isinstance(inner := found.get(part), Mapping):
            return None
        at, found = f"{at}{part}.", inner
    return None
