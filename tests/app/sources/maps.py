"""Functions for `--map`."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.app.milling.tokenizers.panicking import HARMFUL, panicking


def shout(row: dict[str, Any]) -> dict[str, Any] | str | None:
    match row["text"]:
        case "drop":
            return None
        case "plain":
            return "a text"
        case "fail":
            raise ValueError("not this one")
        case "panic":
            Tokenizer.from_str(panicking().decode()).encode(HARMFUL)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once" if not Path(row["mark"]).exists():
            Path(row["mark"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            raise SystemExit(3)
        case "hang":
            Path(row.get("mark", os.devnull)).write_text(str(os.getpid()))
            threading.Event().wait()
        case "lock":
            return {**row, "text": "x", "more": threading.Lock()}
    return {**row, "text": row["text"].upper()}


def shout_all(rows: list[dict[str, Any]]) -> Any:
    """Do the same with a list, which shows its length; return less than that, or no list, if a row says so."""
    if any(row["text"] == "less" for row in rows):
        return [*rows][1:]
    if any(row["text"] == "odd" for row in rows):
        return "no list"
    made = [shout(row) for row in rows]
    return [{**row, "rows": len(rows)} if isinstance(row, dict) else row for row in made]
