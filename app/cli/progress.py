"""Long commands: their progress, brokers that do not answer meanwhile, and in the end what became of documents."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

from rich.progress import BarColumn, Progress, TimeRemainingColumn

from ..broker_contact import CONTACT, Contact, no_answer
from ..funnel.retention import Retention, TriedDocument, beginning_of, languages_line
from ..terminal import ShownTable, escaped, in_notebook
from .output import LINE_CHARACTERS, EscapingConsole, PlainColumn, say, show, show_table, write_over

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


def example_lines(title: str, documents: Iterable[TriedDocument], *, whole: bool) -> Iterator[str]:
    """Yield a title, and below it documents, each with what decided; ``whole``: with all of its text that was kept."""
    yield title
    for one in documents:
        yield f"  {one.place}{f'  {one.detail}' if one.detail else ''}"
        texts = [("", one.text)] if one.after is None else [("- ", one.text), ("+ ", one.after)]
        for sign, text in texts:
            if text:
                yield f"    {sign}{text if whole else beginning_of(text, LINE_CHARACTERS)}"
