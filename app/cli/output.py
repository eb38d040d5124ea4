"""How commands speak: data on standard output, messages on standard error, sizes and numbers for people."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for pipes.")]


def say(message: str) -> None:
    """Write one message for people to standard error."""
    print(f"tokenmill: {message}", file=sys.stderr, flush=True)  # noqa: T201 - this is where commands speak


def show(line: str) -> None:
    """Write one line of data to standard output."""
    print(line, flush=True)  # noqa: T201


def show_json(value: object) -> None:
    """Write one JSON document on one line to standard output; what JSON does not know is written as text."""
    show(json.dumps(value, default=str, ensure_ascii=False))


def messages() -> Console:
    """Return a console on standard error; it knows whether that is a terminal, and NO_COLOR."""
    return Console(stderr=True)


def size(count: float) -> str:
    """Return bytes for people, in powers of ten: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - the step between the units
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count(number: int, thing: str) -> str:
    """Return a number with its noun: ``1 document``, ``1,234 documents``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
