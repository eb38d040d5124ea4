"""Words for what is wrong with a setting: one line, with the place that said it and the nearest spelling."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pydantic import ValidationError


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` with the known name most like ``name``, nothing where none is like it."""
    close = get_close_matches(name.lower(), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def explain(error: ValidationError, origins: Mapping[str, str] | None = None) -> str:
    """Return one line on the first thing that is wrong, and how many more there are.

    ``origins`` says for a setting's name in words where its value was written.
    """
    first, *more = error.errors(include_url=False)
    message = first["msg"].removeprefix("Value error, ")
    rest = f" (and {len(more)} more)" if more else ""
    if not first["loc"]:
        return message + rest
    path = ".".join(str(part) for part in first["loc"])
    origin = (origins or {}).get(str(first["loc"][0]))
    return f"setting {path} = {first['input']!r}{f' ({origin})' if origin else ''}: {message}{rest}"
