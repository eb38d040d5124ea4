"""What JSON is parsed, and why the rest is not; for an object without a text, which setting would find its text.

The reasons are derived from the bytes, not from the parser's message: they are counted in the totals, and so must not
change with the parser's version. All but `parsed_json` runs for refused values only. Keys are untrusted: those that go
into a message are escaped and cut.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from tokenmill.errors import RecordError

from . import protocol
from .plain_text import decode_utf8

_OPERATIONS: Final = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate"}
"""What Debezium writes in ``op`` of an event that changes a table."""
_SHOWN_CHARACTERS: Final = 200


def without_text(value: Mapping[str, Any], text_fields: Sequence[str]) -> RecordError:
    """Return the error for an object that has none of ``text_fields``."""
    for prefix, envelope in (("payload.", value.get("payload")), ("", value)):
        if isinstance(envelope, dict) and _is_change(envelope):
            return RecordError(protocol.DEBEZIUM_ENVELOPE, _of_change(prefix, envelope))
    keys = ", ".join(ascii(key[:_SHOWN_CHARACTERS]) for key in list(value)[:8])[:_SHOWN_CHARACTERS]
    wanted = " or ".join(map(repr, text_fields))
    detail = f"no field {wanted} (text_fields); the object has: {keys or 'no fields'}"
    nested = next(_nested(value, {name.rpartition(".")[2] for name in text_fields}), None)
    return RecordError(protocol.MISSING_TEXT, f"{detail}; {_advice(nested)}" if nested else detail)


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
    for _ in range(4):  # objects deep
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


_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string, the last one perhaps unfinished; possessive, so that it takes linear time and no memory."""

_TO_HALF: Final = re.compile(
    rb"((?:[^\\]++"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|\\(?!u[dD][89a-fA-F][0-9a-fA-F]{2}).)*+)"  # any other escape: `\\ud800` is a backslash and five letters
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})?+",
    re.DOTALL,
)
"""Everything up to a half pair, and that; or up to the end."""
_MAYBE_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""A value without a match has no half pair, so its escapes need not be examined one by one."""


_NO_VALUE: Final = re.compile(rb"-?(?:nan|inf(?:inity)?|none|undefined)\b", re.IGNORECASE)
"""What programs write for a number that is none, or for nothing."""
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def parsed_json(value: bytes, rules: protocol.DecodingRules) -> Any:
    """Return what JSON (no byte order mark) stands for.

    Raises RecordError where it is no JSON, or holds more values than the rules allow; and MemoryError where there is
    not enough to parse it, which says nothing about the value.
    """
    if most_values(value, rules.most_values) > rules.most_values:
        raise rules.too_many_values()
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        if str(error).startswith("Not enough memory"):  # "failed to allocate memory" is said of bad values
            raise MemoryError(str(error)) from None
        raise refusal(value) from None


def most_values(value: bytes, enough: int) -> int:
    """Return how many values JSON can hold at most, by the characters that stand before each but the first.

    Those in strings are left out where it would be more than ``enough``.
    """
    if len(value) <= enough:
        return len(value)
    found = sum(map(value.count, (b",", b"[", b"{")))
    return found if found <= enough else sum(map(_STRING.sub(b"", value).count, (b",", b"[", b"{")))


def refusal(value: bytes) -> RecordError:
    """Return the error for a ``value`` (no byte order mark) that the parser refused."""
    try:
        decode_utf8(value)
    except RecordError as error:
        return error
    depth = value.count(b"[") + value.count(b"{")
    if depth > protocol.MAX_DEPTH and (depth := nesting(value)) > protocol.MAX_DEPTH:
        return RecordError(protocol.TOO_DEEP, f"nested {depth} deep, over {protocol.MAX_DEPTH}")
    if repaired(value) is not None:
        return half_pair()
    return RecordError(protocol.MALFORMED_JSON, _where_it_ends(value))


def _where_it_ends(value: bytes) -> str:
    """Return up to which byte text may be JSON, and why not further: in the parser's words, which nothing counts."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as error:
        at = len(value.decode()[: error.pos].encode())
        word = _NO_VALUE.match(value, max(0, at - (value[at - 1 : at] == b"-")))
        if word is not None:
            return (
                f"{word[0].decode()} at byte {word.start()} is no JSON value: let the producer write null, or a string"
            )
        return f"no JSON from byte {at} on: {error.msg}"
    return "no JSON"


def half_pair() -> RecordError:
    """Return the error for a value that only half a surrogate pair keeps from being JSON."""
    return RecordError(
        protocol.INVALID_UNICODE, "an escape is half a surrogate pair; let the producer replace it by U+FFFD"
    )


def repaired(value: bytes) -> object | None:
    """Return what ``value`` would be with U+FFFD for each half surrogate pair; None if that is not its only fault."""
    if not _MAYBE_HALF.search(value):
        return None
    with_replacements = _TO_HALF.sub(lambda found: found[1] + rb"\ufffd" if found[2] else found[0], value)
    if with_replacements == value:
        return None
    try:
        parsed: object = orjson.loads(with_replacements)
    except orjson.JSONDecodeError:
        return None
    return parsed


def nesting(value: bytes) -> int:
    """Return how deep brackets are nested outside strings, in anything that looks a little like JSON."""
    brackets = np.frombuffer(_STRING.sub(b"", value).translate(None, _NO_BRACKETS), dtype=np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    closing = (brackets == ord("]")) | (brackets == ord("}"))
    depths = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
    return int(depths.max(initial=0))
