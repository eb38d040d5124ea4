"""What a view shows at one moment: the service's numbers and rates, in a few words each."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from ..supervisor import Status

WINDOW_SECONDS: Final = 5.0
"""Over which rates are measured: long enough that a number can be read, short enough that a stop is seen."""
LONGEST: Final = 9_999_999
"""The largest number that is written in full, with separators: nine characters."""
UNITS: Final = "kMGTPE"
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


def facts(scene: LiveScene, rates: Rates) -> Iterator[tuple[str, str]]:
    """Yield what holds for all of it in a few words each, with a style, those of one style together."""
    status, training = scene.status, scene.training
    chains = status.chains.values()
    mills = [worker.state == "running" for worker in status.workers if worker.role == "mill"]
    if (since := status.away_since) is not None:
        at = datetime.fromtimestamp(since).astimezone()
        yield f"NO BROKER ANSWERS since {at:%H:%M:%S} ({max(0.0, time.time() - since):.0f} s)", "bold red"
    for fact in (
        f"{short(sum(chain.documents for chain in chains))} documents",
        f"{sum(chain.bytes for chain in chains) / 1e6:,.1f} MB",
        f"{rates.per_second('bytes') / 1e6:,.2f} MB/s",
        f"{short(rates.per_second('tokens'))} tokens/s",
        "lag unknown" if status.lag is None else f"lag {short(status.lag)} records",
        f"{short(sum(chain.blocks for chain in chains))} blocks, {short(status.stored)} stored",
        f"{short(sum(chain.segments for chain in chains))} segments",
        f"{short(sum(status.eras.values()))} eras",
        f"{sum(mills)} of {len(mills)} mills",
    ):
        yield fact, ""
    if status.dead_letters or status.newest_dead_letter:
        last = status.newest_dead_letter
        newest = f", the newest: {last.reason} ({last.partition}, offset {last.offset})" if last is not None else ""
        yield f"{short(status.dead_letters)} dead letter{'' if status.dead_letters == 1 else 's'}{newest}", "yellow"
    if training is not None:
        yield f"training step {training.step:,}", "cyan"
        yield f"loss {training.loss:.3f}", "cyan"
        yield f"{short(training.tokens_per_second)} tokens/s", "cyan"
        yield f"{training.wait_share:.0%} waiting for data", "cyan"


def notes(status: Status) -> Iterator[tuple[str, str]]:
    """Yield partitions that are halted or wait, on the raw topic or in the store, and why, each reason once."""
    for partition in status.partitions:
        for note in dict.fromkeys([partition.halted, *(chain.note for chain in partition.chains)]):
            if note:
                yield f"{partition.topic}/{partition.number}", note


def plain_line(scene: LiveScene, rates: Rates) -> str:
    """Return what a log file should hold every few seconds: why partitions make no progress as well."""
    stopped = (f"{place}: {note}" for place, note in notes(scene.status))
    return " · ".join([scene.title, *(fact for fact, _ in facts(scene, rates)), *stopped])
