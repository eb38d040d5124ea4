"""The nearest known name for a misspelt one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` with the known name most like ``name``, nothing where none is like it."""
    spellings = {spelling.lower(): spelling for spelling in known}
    close = get_close_matches(name.lower(), list(spellings), n=1)
    return f" (did you mean {spellings[close[0]]}?)" if close else ""
