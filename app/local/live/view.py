"""Showing scenes again and again: tables that renew themselves on a terminal, plain lines elsewhere."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ...logs import set_up_logging
from .scene import LiveScene, Rates, plain_line
from .tables import tables

REFRESH_SECONDS: Final = 0.25
"""Often enough to look smooth; it costs two per cent of a core."""
PLAIN_SECONDS: Final = 2.0
"""Between two lines where there is no terminal."""


def log_to_file(path: Path, level: str) -> None:
    """Send all log lines of this process to the end of ``path``, as JSON; its directory is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    set_up_logging("json", level)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(path.open("a", encoding="utf-8"))


@asynccontextmanager
async def saying_when_cancelled(view: "LiveView") -> AsyncIterator[None]:
    """Say so when the block is cancelled: ending all workers takes a moment."""
    try:
        yield
    except asyncio.CancelledError:
        view.say("ending all processes; what is on disk stays")
        raise


class LiveView:
    """A context manager that shows scenes while `run` runs, and above them, for good, what is said."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._began = time.monotonic()
        # "crop": on a small terminal the rest is cut off; an ellipsis would take the last line.
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the view was made."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        line = Text.assemble((f"{self.seconds:5.1f} s  ", "dim"), (text, style))
        self._console.print(line, soft_wrap=True, highlight=False)

    def show(self, text: str = "", style: str = "") -> None:
        """Print text that stays, without a time."""
        self._console.print(Text(text, style=style), soft_wrap=True, highlight=False)

    async def run(self, look: Callable[[], LiveScene]) -> None:
        """Show what ``look`` returns, again and again until cancelled."""
        self._remember(look())  # before anything is done: a run that is over at the next look has a rate, too
        while True:
            await asyncio.sleep(REFRESH_SECONDS if self._live else PLAIN_SECONDS)
            scene = look()
            now = self._remember(scene)
            if self._live is None:
                self.say(plain_line(scene, self._rates))
            else:
                self._live.update(tables(scene, self._rates, now - self._began), refresh=True)

    def _remember(self, scene: LiveScene) -> float:
        """Take what workers have counted by now, for their rates; return that moment."""
        now = time.monotonic()
        self._rates.add(now, {worker.name: worker.counters for worker in scene.status.workers})
        return now
