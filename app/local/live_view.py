"""The live view: tables that renew themselves on a terminal, each row one line; plain lines elsewhere."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..logs import set_up_logging
from ..supervisor import PartitionStatus, WorkerStatus
from .live_scene import (
    LiveScene,
    Rates,
    cut,
    dead_letters,
    lag_text,
    lines_of,
    listed,
    outage,
    plain_line,
    short,
    totals,
    training_parts,
)

STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "cut off": "bold red",
    "silent": "bold red",
    "ended": "bold red",
}
SHOWN_PARTITIONS: Final = 6
"""Of one worker; more are counted."""
BETWEEN: Final = 2
"""Cells between two columns."""
NARROW: Final = 70
"""Below so many cells, segments are left out: they follow from the blocks."""
WIDE: Final = 100
"""From so many on, there is room for the blocks of each split."""


def tables(scene: LiveScene, rates: Rates, seconds: float) -> RenderableType:
    """Return the whole picture, ``seconds`` after its beginning."""
    return _Picture(scene, rates, seconds)


@dataclass(frozen=True, slots=True)
class _Picture:
    scene: LiveScene
    rates: Rates
    seconds: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, scene, status = options.max_width, self.scene, self.scene.status
        clock = f"   {int(self.seconds) // 60:02}:{int(self.seconds) % 60:02}"
        yield Text()
        yield _line((cut(scene.title, width - len(clock)), "bold"), clock)
        yield from (_line((cut(line, width), "bold red")) for line in outage(scene))
        numbers = [f"lag {lag_text(status.lag)} records", f"{short(status.stored)} blocks stored", _eras(status.eras)]
        yield from (_line(line) for line in lines_of([*totals(scene, self.rates), *numbers], width))
        yield from (_line((cut(line, width), "yellow")) for line in dead_letters(scene))
        yield Text()
        yield _workers(status.workers, self.rates, width)
        yield Text()
        yield _partitions(status.partitions, width)
        yield from _notes(status.partitions)
        if scene.training is not None:
            yield Text()
            lines = lines_of(training_parts(scene.training), width, ", ")
            yield from (_line((line, "cyan")) for line in lines)


def _line(*parts: str | tuple[str, str]) -> Text:
    """Return a text that is one line on every terminal."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _eras(eras: Mapping[str, int]) -> str:
    count = sum(eras.values())
    return f"{short(count)} era{'' if count == 1 else 's'}"


def _workers(workers: tuple[WorkerStatus, ...], rates: Rates, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker")
    table.add_column("process", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("rate", no_wrap=True, justify="right")
    table.add_column("partitions")
    for worker in workers:
        state = worker.state if worker.restart_in is None else f"starts in {worker.restart_in:.0f} s"
        table.add_row(
            _line(cut(worker.name, width // 4)),
            str(worker.pid or "-"),
            Text(state, style=STYLES[worker.state]),
            _rate(worker, rates),
            _line(listed(worker.partitions, width // 3, SHOWN_PARTITIONS, "partitions")),
        )
    return table


def _rate(worker: WorkerStatus, rates: Rates) -> str:
    """Return how fast a worker does what it is there for."""
    if worker.role == "mill":
        return f"{short(rates.per_second('tokens', worker.name))} tokens/s"
    return f"{short(rates.per_second('blocks', worker.name))} blocks/s"


def _partitions(partitions: tuple[PartitionStatus, ...], width: int) -> Table:
    """Return the table; names are cut to what numbers leave, so that a terminal never has to."""
    names = ["records", "lag", "blocks", "stored", *(["segments"] if width >= NARROW else [])]
    rows = [[_counts(partition)[name] for name in names] for partition in partitions]
    left = width - sum(max(map(cell_len, cells)) + BETWEEN for cells in zip(names, *rows, strict=True))
    workers = [cut(partition.worker or "nobody", max(7, width // 6)) for partition in partitions]
    left -= max(map(cell_len, ["worker", *workers])) + BETWEEN
    splits = [cut(_splits(partition), left // 2) for partition in partitions] if width >= WIDE else []
    left -= max(map(cell_len, ["by split", *splits])) + BETWEEN if splits else 0
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("partition", no_wrap=True)
    table.add_column("worker", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    if splits:
        table.add_column("by split", no_wrap=True, style="dim")
    for number, partition in enumerate(partitions):
        worker = Text(workers[number], style="" if partition.worker else "bold red")
        split = [Text(splits[number])] if splits else []
        table.add_row(Text(_place(partition, left)), worker, *rows[number], *split)
    return table


def _counts(partition: PartitionStatus) -> Mapping[str, str]:
    chains = partition.chains
    return {
        "records": short(partition.end or 0),
        "lag": "?" if partition.lag is None else short(partition.lag),
        "blocks": short(sum(chain.blocks for chain in chains)),
        "stored": short(sum(chain.stored for chain in chains)),
        "segments": short(sum(chain.segments for chain in chains)),
    }


def _place(partition: PartitionStatus, width: int) -> str:
    """Return a partition's name; of a long topic the beginning, so that the number is always there."""
    number = f"/{partition.number}"
    return cut(partition.topic, width - cell_len(number)) + number


def _splits(partition: PartitionStatus) -> str:
    """Return the stored blocks of each split."""
    names = [(chain.stream.removeprefix(f"{partition.topic}."), chain.stored) for chain in partition.chains]
    return ", ".join(f"{name} {short(stored)}" for name, stored in names)


def _notes(partitions: tuple[PartitionStatus, ...]) -> Iterator[Text]:
    """Yield why partitions are halted or wait, in full: this advice may take several lines."""
    for partition in partitions:
        place = f"{partition.topic}/{partition.number}"
        for note in dict.fromkeys([partition.halted, *(chain.note for chain in partition.chains)]):
            if note:
                yield Text.assemble((f"{place}: ", "bold red"), (note, "red"), overflow="fold")


REFRESH_SECONDS: Final = 0.25
"""Between two looks: often enough to look smooth."""
IDLE_SECONDS: Final = 1.0
"""Between two pictures where nothing but the clock changes: a picture costs 5 ms."""
PLAIN_SECONDS: Final = 10.0
"""Between two lines where there is no terminal; a worker that starts or ends has one at once."""


def _worker_states(scene: LiveScene) -> tuple[str, ...]:
    """Return the states of the workers."""
    return tuple(worker.state for worker in scene.status.workers)


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
        shown, at = look(), 0.0
        self._remember(shown)  # before anything is done: a run that is over at the next look has a rate, too
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            scene = look()
            now = self._remember(scene)
            new = scene != shown if self._live is not None else _worker_states(scene) != _worker_states(shown)
            if new or now - at >= (IDLE_SECONDS if self._live is not None else PLAIN_SECONDS):
                self._draw(scene, now)
                shown, at = scene, now

    def _draw(self, scene: LiveScene, now: float) -> None:
        if self._live is None:
            self.say(plain_line(scene, self._rates))
        else:
            self._live.update(tables(scene, self._rates, now - self._began), refresh=True)

    def _remember(self, scene: LiveScene) -> float:
        """Take what workers have counted by now, for their rates; return that moment."""
        now = time.monotonic()
        self._rates.add(now, {worker.name: worker.counters for worker in scene.status.workers})
        return now
