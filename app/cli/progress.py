"""Progress of long commands: a bar that renews itself on a terminal, a plain line every few seconds elsewhere."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rich.progress import BarColumn, Progress, ProgressColumn, TimeRemainingColumn

from ..broker_contact import CONTACT, Contact, no_answer
from ..terminal import escaped
from ..terminal_console import PlainColumn
from ..tools.produce import Summary
from .output import count, messages, say, size

PLAIN_SECONDS: Final = 5.0
"""How often a log file hears of it."""
OUTAGE_SECONDS: Final = 20.0
"""How often it is said that no broker answers."""
LOOK_SECONDS: Final = 0.5
"""How often it is looked whether one does."""

T = TypeVar("T")


class Line:
    """One line on a terminal, or now and then one in a log; a context manager that clears the terminal's at the end."""

    def __init__(self, *columns: ProgressColumn, description: str = "") -> None:
        """Show these columns on a terminal; ``description`` is theirs until `show` gives another."""
        console = messages()
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task(description, total=None)
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, description: str, done: int, total: int, plain: Callable[[], str]) -> None:
        """Show how much of ``total`` (0: nobody knows) is done; ``plain`` is asked when a log is to hear of it."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=escaped(description), total=total or None, completed=done)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            say(plain())

    def tell(self, message: str) -> None:
        """Write a message that stays, above the line of a terminal."""
        if self._bar is not None:
            self._bar.console.print(f"tokenmill: {escaped(message)}", soft_wrap=True)
        else:
            say(message)


async def with_outages_told(work: Coroutine[Any, Any, T], servers: str, tell: Callable[[str], None]) -> T:
    """Return what ``work`` does; meanwhile say that no broker answers, again and again, and when one does again."""
    telling = asyncio.ensure_future(_tell_outages(servers, tell, CONTACT))
    try:
        return await work
    finally:
        telling.cancel()


async def _tell_outages(servers: str, tell: Callable[[str], None], contact: Contact) -> None:
    said: float | None = None
    loop = asyncio.get_running_loop()
    while True:
        contact.turn()
        since = contact.away_since
        if since is not None and (said is None or loop.time() - said >= OUTAGE_SECONDS):
            said = loop.time()
            tell(f"{no_answer(servers, since)}; waiting for one")
        elif since is None and said is not None:
            said = None
            tell(f"a broker answers again at {servers}")
        await asyncio.sleep(LOOK_SECONDS)


class Reporter(Line):
    """Called with a run's summary, says where it is.

    The bar ends at the run's limit, where it has one, else at the end of all files, where their sizes are known; with
    both, it is as far as the one that is closer to its end. By it the time that is left is told.
    """

    def __init__(self) -> None:
        columns = (PlainColumn("  {task.description}"), BarColumn(20), TimeRemainingColumn())
        super().__init__(*columns, description="starting")
        self._began = time.monotonic()
        self._done_before: int | None = None
        self.latest: Summary | None = None
        """What it was called with last; its numbers grow on."""

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        self.latest = summary
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        line = f"{count(summary.documents, 'document')}, {size(summary.bytes)}, {size(rate)}/s"
        line += f", {summary.refused:,} passed over" if summary.refused else ""
        described = f"{summary.topic}: {line}"
        done, total = _done(summary)
        self.show(described, done, total, lambda: line + self._left(summary, done, total))

    def _left(self, summary: Summary, done: int, total: int) -> str:
        """Return how much is done and how long the rest takes; nothing if nobody knows."""
        if not total:
            return ""
        told = f", {done / total:.0%} {'read' if summary.limit is None else f'of the limit of {summary.limit:,}'}"
        if self._done_before is None:  # an interrupted run begins in the middle
            self._done_before, self._began = done, time.monotonic()
            return told
        speed = (done - self._done_before) / max(time.monotonic() - self._began, 1e-9)
        seconds = (total - done) / speed if speed else 0
        return told + (f", {timedelta(seconds=round(seconds))} left" if seconds else "")


def _done(summary: Summary) -> tuple[int, int]:
    """Return how far the run is, and where it ends: in documents with a limit, else in bytes; 0: nobody knows."""
    if summary.limit is None:
        return summary.bytes_read, summary.bytes_total
    read = summary.limit * summary.bytes_read // summary.bytes_total if summary.bytes_total else 0
    return min(summary.limit, max(summary.before + summary.documents, read)), summary.limit
