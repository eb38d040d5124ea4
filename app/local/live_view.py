"""The live view: facts and tables that renew themselves on a terminal; plain lines elsewhere."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..logs import set_up_logging
from ..supervisor import PartitionStatus, WorkerStatus
from ..tables import ShownTable, flowed
from .live_scene import Counted, LiveScene, Rates, facts, notes, plain_line, short

STYLES: Final = {"green": ["running"], "yellow": ["starting"], "bold red": ["cut off", "silent", "ended", "nobody"]}
"""Words of tables that are seen from afar."""
SHOWN_PARTITIONS: Final = 6
"""Of one worker; more are counted."""
BETWEEN: Final = 2
"""Cells of the sign between two facts that may end a line."""
WIDE: Final = 100
"""Cells from which on there is room for the blocks of each split."""
REFRESH_SECONDS: Final = 0.25
"""Between two looks: often enough to look smooth ..."""
QUIET_SECONDS: Final = 1.0
"""... and where nothing but the clock changes: a look and a picture cost 8 ms."""
PLAIN_SECONDS: Final = 10.0
"""Between two lines where there is no terminal; a worker that starts or ends has one at once."""


def picture(scene: LiveScene, rates: Rates, seconds: float, width: int) -> Iterator[Text]:
    """Yield the lines on a terminal of so many cells, ``seconds`` after the beginning."""
    yield Text()
    yield _line(f"{int(seconds) // 60:02}:{int(seconds) % 60:02}  {scene.title}", "bold")
    for style, found in groupby(facts(scene, rates), key=itemgetter(1)):
        yield from (_line(line, style) for line in flowed((fact for fact, _ in found), " · ", width - BETWEEN))
    for table in (_workers(scene.status.workers, rates), _partitions(scene.status.partitions, wide=width >= WIDE)):
        yield Text()
        for line in map(_line, table.lines(width)):
            for style, words in STYLES.items():
                line.highlight_words(words, style)
            yield line
    for place, note in notes(scene.status):  # advice, which takes the lines that it needs
        yield Text.assemble((f"{place}: ", "bold red"), (note, "red"))


def _line(text: str, style: str = "") -> Text:
    """Return a text that is one line on every terminal."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _workers(workers: tuple[WorkerStatus, ...], rates: Rates) -> ShownTable:
    table = ShownTable(("worker", "process", "state", "rate", "partitions"))
    for worker in workers:
        does: Counted = "tokens" if worker.role == "mill" else "blocks"
        few = len(worker.partitions) <= SHOWN_PARTITIONS
        table.add(
            worker.name,
            str(worker.pid or "-"),
            worker.state if worker.restart_in is None else f"starts in {worker.restart_in:.0f} s",
            f"{short(rates.per_second(does, worker.name))} {does}/s",
            " ".join(worker.partitions) or "-" if few else f"{len(worker.partitions):,} partitions",
        )
    return table


def _partitions(partitions: tuple[PartitionStatus, ...], *, wide: bool) -> ShownTable:
    columns = ("partition", "worker", "records", "lag", "blocks", "stored", "segments")
    table = ShownTable((*columns, "by split") if wide else columns)
    for partition in partitions:
        chains = partition.chains
        splits = (f"{chain.stream.removeprefix(f'{partition.topic}.')} {short(chain.stored)}" for chain in chains)
        table.add(
            f"{partition.topic}/{partition.number}",
            partition.worker or "nobody",
            short(partition.end or 0),
            "?" if partition.lag is None else short(partition.lag),
            short(sum(chain.blocks for chain in chains)),
            short(sum(chain.stored for chain in chains)),
            short(sum(chain.segments for chain in chains)),
            *([", ".join(splits)] if wide else []),
        )
    return table


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
        live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live = live if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays, with the seconds since the view was made."""
        line = Text.assemble((f"{time.monotonic() - self._began:5.1f} s  ", "dim"), (text, style))
        self._console.print(line, soft_wrap=True, highlight=False)

    def show(self, text: str = "", style: str = "") -> None:
        """Print text that stays, without a time."""
        self._console.print(Text(text, style=style), soft_wrap=True, highlight=False)

    async def run(self, look: Callable[[], LiveScene]) -> None:
        """Show what ``look`` returns, again and again until cancelled."""
        seen, at, pause = look(), -PLAIN_SECONDS, REFRESH_SECONDS
        self._remember(seen)  # before anything is done: a run that is over at the next look has a rate, too
        while True:
            await asyncio.sleep(pause)
            before, seen = seen, look()
            now = self._remember(seen)
            if self._live is not None:
                lines = picture(seen, self._rates, now - self._began, self._console.width)
                self._live.update(Group(*lines), refresh=True)
            elif _states(seen) != _states(before) or now - at >= PLAIN_SECONDS:
                self.say(plain_line(seen, self._rates))
                at = now
            pause = REFRESH_SECONDS if seen != before else QUIET_SECONDS

    def _remember(self, scene: LiveScene) -> float:
        """Take what workers have counted by now, for their rates; return that moment."""
        now = time.monotonic()
        self._rates.add(now, {worker.name: worker.counters for worker in scene.status.workers})
        return now


def _states(scene: LiveScene) -> list[str]:
    return [worker.state for worker in scene.status.workers]
