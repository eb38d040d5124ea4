"""How commands speak: data on standard output, messages and progress on standard error, sizes and numbers for people.

What comes from records and names is shown as it is: Rich would read `[bold]` and `:smile:` in any text.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from ..broker_contact import CONTACT, Contact, no_answer
from ..funnel import Retention, TriedDocument, beginning_of, languages_line
from ..tables import ShownTable
from ..terminal import escaped, escaped_json, escaped_lines, in_notebook, is_terminal

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


def count(number: int, thing: str) -> str:
    """Return a number with its noun: ``1 document``, ``1,234 documents``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


PLAIN_SECONDS: Final = 5.0
"""Between two lines where there is no terminal."""
OUTAGE_SECONDS: Final = 20.0
"""Between two messages that no broker answers."""
LOOK_SECONDS: Final = 0.5
"""Between two looks at whether a broker answers."""

T = TypeVar("T")

BAR: Final = 20
"""Cells of a bar. In a notebook, which is no terminal, a line is written over, and nothing else moves."""


class ProgressLine:
    """One line on a terminal or in a notebook, or a line now and then in a log; a context manager that ends it."""

    def __init__(self, description: str = "") -> None:
        """Show a description, until `show` gives another, beside a bar and the time that is left."""
        console = EscapingConsole(stderr=True)
        columns = PlainColumn("  {task.description}"), BarColumn(BAR), TimeRemainingColumn()
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task(description, total=None)
        self._said = time.monotonic()
        self._written_over: str | None = "" if sys.stderr.isatty() and in_notebook() else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._written_over:
            write_over("\n")

    def show(self, description: str, done: int = 0, total: int = 0, plain: Callable[[], str] | None = None) -> None:
        """Show how much of ``total`` (0: unknown) is done; ``plain`` gives the line for a log where it is another."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=escaped(description), total=total or None, completed=done)
        elif self._written_over is not None:
            bar = f"[{'#' * min(BAR, BAR * done // total):{BAR}}] " if total else ""
            line = bar + escaped(plain() if plain else description)
            write_over(f"\r{line:{len(self._written_over)}}")
            self._written_over = line
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            say(plain() if plain else description)

    def say(self, message: str) -> None:
        """Write a message that stays, above the line of a terminal."""
        if self._bar is not None:
            self._bar.console.print(f"tokenmill: {escaped(message)}", soft_wrap=True)
        else:
            say(message)


async def with_outage_messages(work: Coroutine[Any, Any, T], servers: str, write: Callable[[str], None]) -> T:
    """Return what ``work`` does; meanwhile say, now and then, that no broker answers, and when one does again."""
    saying = asyncio.ensure_future(_say_outages(servers, write, CONTACT))
    try:
        return await work
    finally:
        saying.cancel()


async def _say_outages(servers: str, write: Callable[[str], None], contact: Contact) -> None:
    said: float | None = None
    loop = asyncio.get_running_loop()
    while True:
        contact.turn()
        since = contact.away_since
        if since is not None and (said is None or loop.time() - said >= OUTAGE_SECONDS):
            said = loop.time()
            write(f"{no_answer(servers, since, contact)}; waiting for one")
        elif since is None and said is not None:
            said = None
            write(f"a broker answers again at {servers}")
        await asyncio.sleep(LOOK_SECONDS)


def show_figures(retention: Retention, name: str = "", tokens: Mapping[str, int] | None = None) -> None:
    """Show what is kept, and what dropped the rest; ``tokens``: what each reason dropped would have had."""
    languages = [(language, amount.documents) for language, amount in retention.totals.figures.languages.items()]
    lines = [*retention.lines(), *([f"Languages: {languages_line(languages)}"] if languages else [])]
    for line in ("", f"{name}:", *(f"  {line}" for line in lines)) if name else lines:
        show(line)
    table = _funnel_table(retention, tokens)
    if table.rows:
        show("")
        show_table(table)


def _funnel_table(retention: Retention, tokens: Mapping[str, int] | None = None) -> ShownTable:
    columns: tuple[str, ...] = ("dropped by", "reason", "documents", "share", "bytes of text", "tokens")
    columns = columns[: 5 if tokens is None else 6]
    rows: list[tuple[object, ...]] = []
    for row in retention.funnel():
        counted = () if tokens is None else (tokens[row.reason],)
        share = f"{row.documents / retention.documents:.1%}"
        rows.append((row.step or "-", row.reason, row.documents, share, row.text_bytes, *counted))
    for reason, number in (+retention.totals.dead_lettered).most_common():
        rows.append(("dead letter", reason, number, *[None] * (len(columns) - 3)))
    return ShownTable(columns, rows)


def show_examples(title: str, documents: Iterable[TriedDocument], *, whole: bool) -> None:
    """Show a title, and below it documents, each with what decided; ``whole``: with all of its text that was kept."""
    show(title)
    for one in documents:
        show(f"  {one.place}{f'  {one.detail}' if one.detail else ''}")
        texts = [("", one.text)] if one.after is None else [("- ", one.text), ("+ ", one.after)]
        for sign, text in texts:
            if text:
                show(f"    {sign}{text if whole else beginning_of(text, LINE_CHARACTERS)}")
