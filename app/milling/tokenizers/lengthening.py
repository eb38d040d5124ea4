"""The parts of a tokenizer's own normalizer that may make a text much longer."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenizers import Tokenizer

from ..native_calls import NativeCode
from .description import parts_of

HARMLESS: Final = frozenset({"ByteLevel", "Lowercase", "Prepend", "Strip", "StripAccents"})
"""Parts that make a text longer by half at most, or by what they put before it, or spell each of its bytes."""
_LIBRARY: Final = NativeCode("tokenizers")
_NO_MODEL: Final = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}


def lengthening(content: bytes) -> Callable[[str], str] | None:
    """Return a function that applies the lengthening parts of a file's normalizer; None where it has none.

    Left out are the parts in `HARMLESS`, and each ``Replace`` of a string by one of no more characters: with ``▁`` for
    every space a text has more bytes, and not one token more. ``content`` is that of a tokenizer for which an engine
    was opened. What the library raises, the function raises; a panic as `tokenmill.errors.PanicError`.
    """
    parts = [part for part in parts_of(json.loads(content), "normalizer") if not _is_harmless(part)]
    if not parts:
        return None
    file = {"version": "1.0", "model": _NO_MODEL, "normalizer": {"type": "Sequence", "normalizers": parts}}
    with _LIBRARY:
        normalizer = Tokenizer.from_str(json.dumps(file)).normalizer

    def normalize(text: str) -> str:
        with _LIBRARY:
            normalized: str = normalizer.normalize_str(text)
        return normalized

    return normalize


def _is_harmless(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "Replace":
        found = part["pattern"].get("String")
        return found is not None and len(part["content"]) <= len(found)
    return part.get("type") in HARMLESS
