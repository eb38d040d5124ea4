"""Fields of an object by name or dotted path: one rule for the settings of a topic and for `tokenmill produce`.

A field's whole name goes first: ``meta.lang`` is the key of that name where the object has it, whatever its value, and
else ``lang`` in the object ``meta``. Only the whole name may hold a dot, no part of a path does.
"""

from collections.abc import Mapping
from typing import Any


def find_field(row: Mapping[str, Any], path: str, absent: Any = None) -> Any:
    """Return the field that ``path`` names, ``absent`` where there is none.

    Arrays are not gone into: a path leads from object to object.
    """
    if path in row:
        return row[path]
    if "." not in path:
        return absent
    found: Any = row
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return absent
        found = found[part]
    return found
