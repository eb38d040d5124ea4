"""Measures the partitions that a worker owns: what waits, how old it is, and what each of them does."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from aiokafka import TopicPartition

from .lag_age import Trail
from .stage_clock import StageClock
from .worker_metrics import (
    DURABLE_LAG_RECORDS,
    DURABLE_LAG_SECONDS,
    END_OFFSET,
    LAG_RECORDS,
    LAG_SECONDS,
    NEWEST_TOKEN,
    OPEN_TOKENS,
    PARTITIONS,
    QUEUED_BYTES,
)

State = Literal["resuming", "running", "waiting", "halted"]
STATES: Final[Mapping[State, str]] = {
    "resuming": "finding the place to continue at",
    "running": "taking what comes",
    "waiting": "for another process's lock, a missing block, or a schema registry",
    "halted": "standing until a person acts",
}


OF_PARTITIONS: Final = (
    PARTITIONS,
    END_OFFSET,
    LAG_RECORDS,
    LAG_SECONDS,
    DURABLE_LAG_RECORDS,
    DURABLE_LAG_SECONDS,
    NEWEST_TOKEN,
    OPEN_TOKENS,
)
"""Gauges that tell of a partition only while the worker owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a partition stands."""

    state: State
    position: int | None
    """The offset up to which records have been taken; None before it is known."""
    durable: int | None = None
    """The offset up to which they are durable downstream, where that is another number."""
    open_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens in the open block of each split."""
    queued_bytes: int = 0
    """Tokens that wait to be acknowledged."""
    stream: str = ""
    newest_timestamp: int = 0
    """Of a partition that is stored: when the newest source record with trainable tokens was written, in milliseconds
    since 1970; 0 while that is unknown."""
    trail: Trail
    clock: StageClock


class Measured(Protocol):
    """A partition that can be measured."""

    def standing(self) -> Standing:
        """Return where it stands."""
        ...


def measure(
    partitions: Mapping[TopicPartition, Measured], ends: Mapping[TopicPartition, int], *, reached: bool = True
) -> None:
    """Set all gauges of partitions; ``ends`` are the known offsets after the last record of each.

    What waits has samples only where a broker is ``reached``: else the ends are old, and nobody knows it.
    """
    now = time.time_ns() // 1_000_000
    for gauge in OF_PARTITIONS:
        gauge.clear()
    queued = 0
    for tp, partition in partitions.items():
        standing = partition.standing()
        queued += standing.queued_bytes
        PARTITIONS.labels(tp.topic, standing.state).inc()
        for split, tokens in standing.open_tokens.items():
            OPEN_TOKENS.labels(tp.topic, str(tp.partition), split).set(tokens)
        if standing.newest_timestamp:
            NEWEST_TOKEN.labels(standing.stream, str(tp.partition)).set(standing.newest_timestamp / 1000)
        end = ends.get(tp)
        standing.clock.look(behind=end is None or standing.position is None or standing.position < end)
        if reached and end is not None:
            END_OFFSET.labels(tp.topic, str(tp.partition)).set(end)
        if reached and end is not None and standing.position is not None:
            _measure_lag(tp, standing, standing.position, end, now)
    QUEUED_BYTES.set(queued)


def free_bytes(path: Path) -> int:
    """Return the bytes that are free on the disk under ``path``; none where it is gone."""
    try:
        return shutil.disk_usage(path).free
    except OSError:  # its partitions say why; what measures must go on
        return 0


def _measure_lag(tp: TopicPartition, standing: Standing, position: int, end: int, now: int) -> None:
    trail, labels = standing.trail, (tp.topic, str(tp.partition))
    if position >= end:
        trail.level(now)
    trail.forget(position if standing.durable is None else standing.durable)
    LAG_RECORDS.labels(*labels).set(max(0, end - position))
    age = trail.age(position, now) if position < end else 0.0
    if age is not None:
        LAG_SECONDS.labels(*labels).set(age)
    if standing.durable is not None:
        DURABLE_LAG_RECORDS.labels(*labels).set(max(0, end - standing.durable))
        age = trail.age(standing.durable, now) if standing.durable < end else 0.0
        if age is not None:
            DURABLE_LAG_SECONDS.labels(*labels).set(age)
