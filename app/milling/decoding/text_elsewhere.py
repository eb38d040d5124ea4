"""The error for an object without a text in the text fields: what the object is, and which setting would find its text.

This runs for refused values only. Keys are untrusted: those that go into a message are escaped and cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tokenmill.errors import RecordError

from .reasons import DEBEZIUM_ENVELOPE, MISSING_TEXT

_OPERATIONS: Final = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate"}
"""What Debezium writes in ``op`` of an event that changes a table."""
_DEPTH: Final = 4
"""How many objects deep a text is searched."""
_SHOWN_KEYS: Final = 8
_SHOWN_CHARACTERS: Final = 200


def without_text(value: Mapping[str, Any], text_fields: Sequence[str]) -> RecordError:
    """Return the error for an object that has none of ``text_fields``."""
    for prefix, envelope in (("payload.", value.get("payload")), ("", value)):
        if isinstance(envelope, dict) and _is_change(envelope):
            return RecordError(DEBEZIUM_ENVELOPE, _of_change(prefix, envelope))
    keys = ", ".join(ascii(key[:_SHOWN_CHARACTERS]) for key in list(value)[:_SHOWN_KEYS])[:_SHOWN_CHARACTERS]
    wanted = " or ".join(map(repr, text_fields))
    detail = f"no field {wanted} (text_fields); the object has: {keys or 'no fields'}"
    nested = next(_nested(value, {name.rpartition(".")[2] for name in text_fields}), None)
    return RecordError(MISSING_TEXT, f"{detail}; {_advice(nested)}" if nested else detail)


def _is_change(envelope: Mapping[str, Any]) -> bool:
    operation = envelope.get("op")
    return isinstance(operation, str) and operation in _OPERATIONS and ("after" in envelope or "before" in envelope)


def _of_change(prefix: str, envelope: Mapping[str, Any]) -> str:
    operation = envelope["op"]
    said = f'a change event of Debezium (op "{operation}", {_OPERATIONS[operation]})'
    row = envelope.get("after")
    if not isinstance(row, dict):
        return f"{said} without a row after the change: it has no text"
    texts = {name: field for name, field in row.items() if isinstance(field, str) and "." not in name}
    longest = max(texts, key=lambda name: len(texts[name]), default=None)
    path = None if longest is None else _shown(f"{prefix}after.{longest}")
    return f"{said}; {_advice(path)}" if path else f"{said}; name its text with text_fields, as {prefix}after.body"


def _nested(value: Mapping[str, Any], names: set[str]) -> Iterator[str]:
    """Yield paths to strings of these names in objects within the object, the shortest first."""
    level: list[tuple[str, Mapping[str, Any]]] = [("", value)]
    for _ in range(_DEPTH):
        level = [
            (f"{at}{key}.", found)
            for at, row in level
            for key, found in row.items()
            if isinstance(found, dict) and len(at) + len(key) < _SHOWN_CHARACTERS  # longer ones are not shown
        ]
        for at, row in level:
            for name in sorted(names):
                if isinstance(row.get(name), str) and (path := _shown(at + name)):
                    yield path


def _shown(path: str) -> str | None:
    """Return the path if it can be shown in a message and written in settings, else None."""
    return path if len(path) <= _SHOWN_CHARACTERS and path.isascii() and path.isprintable() else None


def _advice(path: str | None) -> str:
    return f'text_fields = "{path}" reads the text that it has there'
