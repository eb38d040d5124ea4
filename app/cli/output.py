"""How commands speak: data on standard output, messages on standard error, sizes and numbers for people.

What comes from records and names is shown as it is: Rich would read `[bold]` and `:smile:` in any text.
"""

import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import TextColumn
from rich.segment import Segment

from ..terminal import ShownTable, escaped, escaped_json, escaped_lines, is_terminal

PlainColumn: Final = partial(TextColumn, markup=False)

LINE_CHARACTERS: Final = 100
"""Of a text, where it is one of many."""


class EscapingConsole(Console):
    """A console on which texts are shown as they are, and control characters in them escaped."""

    def __init__(self, *, stderr: bool = False) -> None:
        terminal = is_terminal(sys.stderr if stderr else sys.stdout)
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, force_terminal=terminal)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what a renderable is made of; only the console's own control segments hold control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped_lines(segment.text))


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal there is no question anyway.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]
All = Annotated[bool, typer.Option("--all", help="Show all there is, not only the answer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for pipes.")]


def moment_of(milliseconds: int) -> str:
    """Return a record's time in UTC; empty where it is not known, or no date."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def say(message: str) -> None:
    """Write one message for people to standard error, escaped."""
    print(f"tokenmill: {escaped(message)}", file=sys.stderr, flush=True)  # noqa: T201 - this is where commands speak


def write_over(text: str) -> None:
    """Write a part of a line to standard error that was escaped already, with signs that go back to its beginning."""
    print(text, end="", file=sys.stderr, flush=True)  # noqa: T201


def show(line: str) -> None:
    """Write one line of data to standard output, escaped."""
    print(escaped(line), flush=True)  # noqa: T201


def show_page(text: str) -> None:
    """Print a text of several lines, as a shell writes it into a file."""
    print(escaped_lines(text), flush=True)  # noqa: T201


def show_json(value: object) -> None:
    """Write one JSON document on one line to standard output; what JSON does not know is written as text."""
    show(escaped_json(value))


def show_table(table: ShownTable) -> None:
    """Write a table to standard output; only a terminal's lines are of its width."""
    for line in table.lines(shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        show(line)


def asks(*, yes: bool) -> bool:
    """Return whether a person is there to be asked, and did not agree before; scripts mean what they say."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def agree(what: str) -> None:
    """Say what is about to happen, and return when the person agrees; raises typer.Exit where not: nothing was done."""
    say(what)
    if not typer.confirm("Go on?", err=True):
        say("nothing was done")
        raise typer.Exit(1)


def size(count: float) -> str:
    """Return bytes for people, in powers of ten: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - the step between the units
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def of_all(items: Sequence[object], number: int) -> str:
    """Return how many are shown, and of how many: ``5 of 1,234``; the number alone where these are all."""
    return f"{len(items):,} of {number:,}" if len(items) < number else f"{number:,}"


def count(number: int, thing: str) -> str:
    """Return a number with its noun: ``1 document``, ``1,234 documents``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
