"""Progress of produce: a bar that renews itself on a terminal, a plain line every few seconds elsewhere."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..produce import Summary
from .output import count, messages, say, size

PLAIN_SECONDS: Final = 5.0
"""How often a log file hears of it."""


class Reporter:
    """Called with a run's summary, says where it is; a context manager that clears its line at the end.

    The time that is left is told by how much of all files was read, where their sizes are known.
    """

    def __init__(self) -> None:
        console = messages()
        columns = (TextColumn("  {task.description}"), BarColumn(20), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("starting", total=None)
        self._said = self._began = time.monotonic()
        self._read_before: int | None = None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        line = f"{count(summary.documents, 'document')}, {size(summary.bytes)}, {size(rate)}/s"
        line += f", {summary.refused:,} passed over" if summary.refused else ""
        if self._bar is not None and self._task is not None:
            total = summary.bytes_total or None
            described = f"{summary.topic}: {line}"
            self._bar.update(self._task, description=described, total=total, completed=summary.bytes_read)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            say(line + self._left(summary))

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
