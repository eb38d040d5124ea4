"""Words for what is wrong with a setting: one line, with the place that said it and the nearest spelling."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tokenmill.spelling import nearest

DEFAULT_ORIGIN: Final = "default"
"""Where a value comes from that was not written anywhere."""


def explain(error: ValidationError, secrets: Collection[str], origins: Mapping[str, str] | None = None) -> str:
    """Return one line on the first thing that is wrong, and how many more there are.

    ``origins`` says for a setting's name in words where its value was written. What one of the ``secrets`` was
    set to is not said.
    """
    first, *more = error.errors(include_url=False)
    message = first["msg"].removeprefix("Value error, ") + _nearest_choice(first)
    rest = f" (and {len(more)} more)" if more else ""
    if not first["loc"]:
        return message + _places(message, origins or {}) + rest
    path = ".".join(str(part) for part in first["loc"])
    name = str(first["loc"][0])
    value = "" if name in secrets else f" = {first['input']!r}"
    origin = (origins or {}).get(name)
    return f"setting {path}{value}{f' ({origin})' if origin else ''}: {message}{rest}"


def _places(message: str, origins: Mapping[str, str]) -> str:
    """Return where the settings that contradict each other were written, as far as anybody wrote them."""
    named = dict.fromkeys(re.findall(r"\b[a-z]+_[a-z_]+\b", message))
    said = [f"{name}: {origins[name]}" for name in named if origins.get(name, DEFAULT_ORIGIN) != DEFAULT_ORIGIN]
    return f" ({', '.join(said)})" if said else ""


def _nearest_choice(error: ErrorDetails) -> str:
    """Return the nearest of the values that a setting may have, where there are only so many."""
    if error["type"] != "literal_error":
        return ""
    return nearest(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
