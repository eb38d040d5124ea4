"""Progress of long commands: a bar that renews itself on a terminal, a plain line every few seconds elsewhere."""

import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from ..produce import Summary
from .output import count, messages, say, size

PLAIN_SECONDS: Final = 5.0
"""How often a log file hears of it."""


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
            self._bar.update(self._task, description=description, total=total or None, completed=done)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            say(plain())


class Reporter(Line):
    """Called with a run's summary, says where it is.

    The time that is left is told by how much of all files was read, where their sizes are known.
    """

    def __init__(self) -> None:
        columns = (TextColumn("  {task.description}"), BarColumn(20), TimeRemainingColumn())
        super().__init__(*columns, description="starting")
        self._began = time.monotonic()
        self._read_before: int | None = None
        self.latest: Summary | None = None
        """What it was called with last; its numbers grow on."""

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        self.latest = summary
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        line = f"{count(summary.documents, 'document')}, {size(summary.bytes)}, {size(rate)}/s"
        line += f", {summary.refused:,} passed over" if summary.refused else ""
        described = f"{summary.topic}: {line}"
        self.show(described, summary.bytes_read, summary.bytes_total, lambda: line + self._left(summary))

    def _left(self, summary: Summary) -> str:
        """Return how much of the files was read and how long the rest takes; nothing if nobody knows."""
        if not summary.bytes_total:
            return ""
        read = f", {summary.bytes_read / summary.bytes_total:.0%} read"
        if self._read_before is None:  # an interrupted run begins in the middle
            self._read_before, self._began = summary.bytes_read, time.monotonic()
            return read
        speed = (summary.bytes_read - self._read_before) / max(time.monotonic() - self._began, 1e-9)
        seconds = (summary.bytes_total - summary.bytes_read) / speed if speed else 0
        return read + (f", {timedelta(seconds=round(seconds))} left" if seconds else "")
