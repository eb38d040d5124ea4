"""Functions for `--map`."""

import os
import signal
from typing import Any


def shout(row: dict[str, Any]) -> dict[str, Any] | str | None:
    """Return another row, a text, nothing, no answer at all, or never return."""
    match row["text"]:
        case "drop":
            return None
        case "plain":
            return "a text"
        case "fail":
            raise ValueError("not this one")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    return {**row, "text": row["text"].upper()}
