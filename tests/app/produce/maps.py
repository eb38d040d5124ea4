"""Functions for `--map`."""

from typing import Any


def shout(row: dict[str, Any]) -> dict[str, Any] | str | None:
    """Return another row, a text, nothing, or no answer at all."""
    match row["text"]:
        case "drop":
            return None
        case "plain":
            return "a text"
        case "fail":
            raise ValueError("not this one")
    return {**row, "text": row["text"].upper()}
