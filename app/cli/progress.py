"""Progress of produce: a line that renews itself on a terminal, a plain line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Final, Self

from rich.live import Live
from rich.text import Text

from ..produce import Summary
from .output import count, messages, say, size

PLAIN_SECONDS: Final = 5.0
"""How often a log file hears of it."""


class Reporter:
    """Called with a run's summary, says where it is; a context manager that clears its line at the end."""

    def __init__(self) -> None:
        console = messages()
        self._live = Live(console=console, transient=True) if console.is_terminal else None
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        line = f"{count(summary.documents, 'document')}, {size(summary.bytes)}, {size(rate)}/s"
        line += f", {summary.refused:,} passed over" if summary.refused else ""
        if self._live is not None:
            self._live.update(Text(f"  {summary.topic}: {line}"))
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            say(line)
