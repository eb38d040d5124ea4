"""What a view shows at one moment: the service's numbers and rates, as parts of a line and as one line."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size

from ..supervisor import Status

WINDOW_SECONDS: Final = 5.0
"""Over which rates are measured: long enough that a number can be read, short enough that a stop is seen."""
LONGEST: Final = 9_999_999
"""The largest number that is written in full, with separators: nine characters."""
UNITS: Final = ("k", "M", "G", "T", "P", "E")
"""Powers of a thousand."""


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
Counts = Mapping[str, Mapping[str, float]]
"""Per worker: what its running process has counted since it began."""


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
        """Return the rate of a worker, or of all together; 0 before there were two looks.

        Counts begin at 0 with a worker's process, so all that a new one has counted is work of these seconds: a run
        that is over before the second look has a rate as well.
        """
        if not self._seen:
            return 0.0
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        workers = now if worker is None else [worker]
        grown = sum(_grown(before.get(w, {}).get(name, 0), now.get(w, {}).get(name, 0)) for w in workers)
        return grown / (last - first) if last > first else 0.0


def _grown(before: float, now: float) -> float:
    """Return by how much a count grew; one that fell is of a new process, which began at 0."""
    return now if now < before else now - before


def short(number: float) -> str:
    """Return a number that is not negative in nine characters at most: ``1,234,567``, then ``12.3M``."""
    if number <= LONGEST:
        return f"{number:,.0f}"
    power = 0
    while number >= 999.95 and power < len(UNITS):  # noqa: PLR2004 - from there on, one decimal would round to 1000.0
        number, power = number / 1000, power + 1
    return f"{number:.1f}{UNITS[power - 1]}"


def lines_of(parts: Iterable[str], width: int, separator: str = " · ") -> list[str]:
    """Return lines of ``width`` cells at most, each of as many whole parts as fit; a longer part ends with ``…``."""
    lines: list[str] = []
    for part in parts:
        fitting = cut(part, width)
        if lines and cell_len(lines[-1]) + cell_len(separator) + cell_len(fitting) <= width:
            lines[-1] += separator + fitting
        else:
            lines.append(fitting)
    return lines


def cut(text: str, width: int) -> str:
    """Return a text in ``width`` cells at most; what does not fit is left out behind a ``…``."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"


def listed(names: Sequence[str], width: int, most: int, thing: str) -> str:
    """Return names, ``most`` of them at most and in ``width`` cells, or else how many there are."""
    text = " ".join(names) or "-"
    return text if len(names) <= most and cell_len(text) <= width else f"{len(names):,} {thing}"


def plain_line(scene: LiveScene, rates: Rates) -> str:
    """Return what a log file should hold every few seconds."""
    status = scene.status
    chains = status.chains.values()
    mills = [worker for worker in status.workers if worker.role == "mill"]
    parts = [
        scene.title,
        *outage(scene),
        *totals(scene, rates),
        f"lag {lag_text(status.lag)}",
        f"{sum(chain.blocks for chain in chains):,} blocks, {status.stored:,} stored",
        f"{sum(chain.segments for chain in chains):,} segments",
        f"{sum(status.eras.values()):,} eras",
        *dead_letters(scene),
        f"{sum(mill.state == 'running' for mill in mills)} of {len(mills)} mills",
    ]
    if scene.training is not None:
        parts.append(training_text(scene.training))
    return " · ".join(parts)


def outage(scene: LiveScene) -> list[str]:
    """Return that no broker answers, and since when; nothing while one does."""
    since = scene.status.away_since
    if since is None:
        return []
    at = datetime.fromtimestamp(since).astimezone()
    return [f"NO BROKER ANSWERS since {at:%H:%M:%S} ({max(0.0, time.time() - since):.0f} s)"]


def lag_text(lag: int | None) -> str:
    """Return a lag in records; what the brokers have not said is unknown, not 0."""
    return "unknown" if lag is None else short(lag)


def totals(scene: LiveScene, rates: Rates) -> list[str]:
    """Return what has been milled, and how fast."""
    chains = scene.status.chains.values()
    return [
        f"{short(sum(chain.documents for chain in chains))} documents",
        f"{sum(chain.bytes for chain in chains) / 1e6:,.1f} MB",
        f"{rates.per_second('bytes') / 1e6:,.2f} MB/s",
        f"{short(rates.per_second('tokens'))} tokens/s",
    ]


def dead_letters(scene: LiveScene) -> list[str]:
    """Return how many records became none, and why and where the newest did; nothing where there are none."""
    count, newest = scene.status.dead_letters, scene.status.newest_dead_letter
    if not count and newest is None:
        return []
    last = f", the newest: {newest.reason} ({newest.partition}, offset {newest.offset})" if newest is not None else ""
    return [f"{short(count)} dead letter{'' if count == 1 else 's'}{last}"]


def training_text(training: TrainingStatus) -> str:
    """Return how the training goes, in a few words."""
    return ", ".join(training_parts(training))


def training_parts(training: TrainingStatus) -> list[str]:
    """Return the same, each number on its own."""
    return [
        f"training step {training.step:,}",
        f"loss {training.loss:.3f}",
        f"{short(training.tokens_per_second)} tokens/s",
        f"{training.wait_share:.0%} waiting for data",
    ]
