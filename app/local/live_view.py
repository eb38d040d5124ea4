"""The live view: facts and tables that renew themselves on a terminal; plain lines elsewhere."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..logs import set_up_logging
from ..supervisor.supervisor import Event, Row, Status
from ..tables import ShownTable, flowed
from ..telemetry.status_document import WorkerStatus

WINDOW_SECONDS: Final = 5.0
"""Over which rates are measured: long enough that a number can be read, short enough that a stop is seen."""
LONGEST: Final = 9_999_999
"""The largest number that is written in full, with separators: nine characters."""
UNITS: Final = "kMGTPE"


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The state of a training run that reads the store."""

    step: int
    loss: float
    tokens_per_second: float
    wait_share: float
    """Share of its time, 0 to 1, that it waits for data."""


@dataclass(frozen=True, slots=True)
class LiveScene:
    """The service, and who reads from it."""

    title: str
    status: Status
    training: TrainingStatus | None = None


Counted = Literal["documents", "bytes", "tokens", "blocks"]
DONE: Final[Mapping[str, Counted]] = {"mill": "tokens", "segment": "blocks"}
"""What is shown of the work of a role; a sequencer's is in the rates of the mills."""
Counts = Mapping[str, Mapping[str, float]]


class Rates:
    """Rates of what workers count, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counts]] = deque()

    def add(self, now: float, counts: Counts) -> None:
        """Take the counts at ``now``, in seconds of a monotonic clock."""
        self._seen.append((now, counts))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_SECONDS:  # noqa: PLR2004 - two make a rate
            self._seen.popleft()

    def per_second(self, name: Counted, worker: str | None = None) -> float:
        """Return the rate of a worker, or of all; counts begin at 0 with a process, so all of a new one is growth."""
        if not self._seen:
            return 0.0
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        workers = now if worker is None else [worker]
        counts = ((before.get(w, {}).get(name, 0), now.get(w, {}).get(name, 0)) for w in workers)
        grown = sum(count - (old if count >= old else 0) for old, count in counts)  # one that fell is of a new process
        return grown / (last - first) if last > first else 0.0


def _short(number: float) -> str:
    """Return a number that is not negative in nine characters at most: ``1,234,567``, then ``12.3M``."""
    if number <= LONGEST:
        return f"{number:,.0f}"
    power = 0
    while number >= 999.95 and power < len(UNITS):  # noqa: PLR2004 - from there on, one decimal would round to 1000.0
        number, power = number / 1000, power + 1
    return f"{number:.1f}{UNITS[power - 1]}"


def _facts(scene: LiveScene, rates: Rates) -> Iterator[tuple[str, str]]:
    """Yield what holds for all of it in a few words each, with a style, those of one style together."""
    status, training = scene.status, scene.training
    chains, with_letters = status.chains, [row for row in status.partitions if row["dead_letter"]]
    mills = [worker.state == "running" for worker in status.workers if worker.role == "mill"]
    if (since := status.away_since) is not None:
        at = datetime.fromtimestamp(since).astimezone()
        yield f"NO BROKER ANSWERS since {at:%H:%M:%S} ({max(0.0, time.time() - since):.0f} s)", "bold red"
    for fact in (
        f"{_short(sum(chain['documents'] for chain in chains))} documents",
        f"{sum(chain['bytes'] for chain in chains) / 1e6:,.1f} MB",
        f"{rates.per_second('bytes') / 1e6:,.2f} MB/s",
        f"{_short(rates.per_second('tokens'))} tokens/s",
        "lag unknown" if status.lag is None else f"lag {_short(status.lag)} records",
        f"{_short(sum(chain['block'] for chain in chains))} blocks, {_short(status.stored)} stored",
        f"{_short(sum(chain['segments'] for chain in chains))} segments",
        f"{_short(sum(status.eras.values()))} eras",
        f"{sum(mills)} of {len(mills)} mills",
    ):
        yield fact, ""
    if status.dead_letters or with_letters:
        newest = ""
        if row := max(with_letters, key=lambda row: row["dead_letter"]["at"], default=None):
            newest = ", the newest: {reason} ({place}, offset {offset})".format(place=_place(row), **row["dead_letter"])
        yield f"{_short(status.dead_letters)} dead letter{'' if status.dead_letters == 1 else 's'}{newest}", "yellow"
    if training is not None:
        yield f"training step {training.step:,}", "cyan"
        yield f"loss {training.loss:.3f}", "cyan"
        yield f"{_short(training.tokens_per_second)} tokens/s", "cyan"
        yield f"{training.wait_share:.0%} waiting for data", "cyan"


def _place(row: Row) -> str:
    return f"{row['topic']}/{row['partition']}"


def _notes(status: Status) -> Iterator[tuple[str, str]]:
    """Yield partitions that are halted or wait, on the raw topic or in the store, and why, each reason once."""
    for row in status.partitions:
        for note in dict.fromkeys([row["note"], *(chain["note"] for chain in row["chains"])]):
            if note:
                yield _place(row), note


def _plain_line(scene: LiveScene, rates: Rates) -> str:
    """Return what a log file should hold every few seconds: why partitions make no progress as well."""
    stopped = (f"{place}: {note}" for place, note in _notes(scene.status))
    return " · ".join([scene.title, *(fact for fact, _ in _facts(scene, rates)), *stopped])


STYLES: Final = {"green": ["running"], "yellow": ["starting"], "bold red": ["cut off", "silent", "ended", "nobody"]}
"""Words of tables that are seen from afar."""
EVENT_STYLES: Final = {"ended": "red", "not started": "red", "not served": "red", "took over": "green"}
WIDE: Final = 100
"""Cells from which on there is room for the blocks of each split."""
REFRESH_SECONDS: Final = 0.25
"""Between two looks: often enough to look smooth ..."""
QUIET_SECONDS: Final = 1.0
"""... and where nothing but the clock changes: a look and a picture cost 8 ms."""
PLAIN_SECONDS: Final = 10.0
"""Between two lines where there is no terminal; a worker that starts or ends has one at once."""


def _picture(scene: LiveScene, rates: Rates, seconds: float, width: int) -> Iterator[Text]:
    """Yield the lines on a terminal of so many cells, ``seconds`` after the beginning."""
    yield Text()
    yield _line(f"{int(seconds) // 60:02}:{int(seconds) % 60:02}  {scene.title}", "bold")
    for style, found in groupby(_facts(scene, rates), key=itemgetter(1)):
        yield from (_line(line, style) for line in flowed((fact for fact, _ in found), " · ", width - 2))
    for table in (_workers(scene.status.workers, rates), _partitions(scene.status.partitions, wide=width >= WIDE)):
        yield Text()
        for line in map(_line, table.lines(width)):
            for style, words in STYLES.items():
                line.highlight_words(words, style)
            yield line
    for place, note in _notes(scene.status):  # advice, which takes the lines that it needs
        yield Text.assemble((f"{place}: ", "bold red"), (note, "red"))


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _workers(workers: tuple[WorkerStatus, ...], rates: Rates) -> ShownTable:
    rows = []
    for worker in workers:
        does = DONE.get(worker.role)
        few = len(worker.partitions) <= 6  # noqa: PLR2004 - more are counted
        state = worker.state if worker.restart_in is None else f"starts in {worker.restart_in:.0f} s"
        rate = "-" if does is None else f"{_short(rates.per_second(does, worker.name))} {does}/s"
        partitions = " ".join(worker.partitions) or "-" if few else f"{len(worker.partitions):,} partitions"
        rows.append((worker.name, str(worker.pid or "-"), state, rate, partitions))
    return ShownTable(("worker", "process", "state", "rate", "partitions"), rows)


def _partitions(partitions: tuple[Row, ...], *, wide: bool) -> ShownTable:
    columns = ("partition", "worker", "records", "lag", "blocks", "stored", "segments")
    rows = []
    for row in partitions:
        chains, before = row["chains"], f"{row['topic']}."
        splits = (f"{chain['stream'].removeprefix(before)} {_short(chain['stored'])}" for chain in chains)
        lag = "?" if row["lag"] is None else _short(row["lag"])
        sums = (_short(sum(chain[name] for chain in chains)) for name in ("block", "stored", "segments"))
        own = (_place(row), row["worker"] or "nobody", _short(row["end"] or 0), lag, *sums)
        rows.append((*own, ", ".join(splits)) if wide else own)
    return ShownTable((*columns, "by split") if wide else columns, rows)


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
    """Shows scenes while `run` runs, and above them, for good, what is said."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._began = time.monotonic()
        # "crop": on a small terminal the rest is cut off; an ellipsis would take the last line.
        live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live = live if console.is_terminal else None

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays, with the seconds since the view was made."""
        line = Text.assemble((f"{time.monotonic() - self._began:5.1f} s  ", "dim"), (text, style))
        self._console.print(line, soft_wrap=True, highlight=False)

    def say_event(self, event: Event) -> None:
        """Print what happened to a worker."""
        self.say(event.text, EVENT_STYLES.get(event.kind, "dim"))

    def show(self, text: str = "", style: str = "") -> None:
        """Print text that stays, without a time."""
        self._console.print(Text(text, style=style), soft_wrap=True, highlight=False)

    async def run(self, look: Callable[[], LiveScene]) -> None:
        """Show what ``look`` returns, again and again until cancelled; of its pictures nothing stays."""
        seen, at, pause = look(), -PLAIN_SECONDS, REFRESH_SECONDS
        self._remember(seen)  # before anything is done: a run that is over at the next look has a rate, too
        with self._live or nullcontext():
            while True:
                await asyncio.sleep(pause)
                before, seen = seen, look()
                states_before, states = ([worker.state for worker in scene.status.workers] for scene in (before, seen))
                now = self._remember(seen)
                if self._live is not None:
                    lines = _picture(seen, self._rates, now - self._began, self._console.width)
                    self._live.update(Group(*lines), refresh=True)
                elif states != states_before or now - at >= PLAIN_SECONDS:
                    self.say(_plain_line(seen, self._rates))
                    at = now
                pause = REFRESH_SECONDS if self._live is not None and seen != before else QUIET_SECONDS

    def _remember(self, scene: LiveScene) -> float:
        now = time.monotonic()
        self._rates.add(now, {worker.name: worker.counters for worker in scene.status.workers})
        return now
