"""Measures the partitions that a worker owns: what waits, how old it is, what each does, and where its time goes."""

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from aiokafka import TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import TokenMillError
from tokenmill.wire.totals import Totals

from ..milling.partition_mill import ChainMill
from . import worker_metrics as metrics

if TYPE_CHECKING:  # which counts by what is here
    from ..mill.publisher import Publisher

Stage = Literal[
    "resume",
    "halted",
    "idle",
    "fetch",
    "decode",
    "tokenize",
    "pack",
    "dead_letters",
    "publish",
    "append",
    "sync",
    "other",
]
STAGES: Final[Mapping[Stage, str]] = {
    "resume": "finding the place to continue at, or waiting for a directory's lock or a missing block",
    "halted": "stopped until a person acts",
    "idle": "nothing to do: all that there is has been taken",
    "fetch": "waiting for records that are there",
    "decode": "records become documents: decoding, splits, steps",
    "tokenize": "documents become ids",
    "pack": "ids become blocks, with their hashes, and messages",
    "dead_letters": "waiting until dead letters are acknowledged",
    "publish": "waiting for room in the queue of messages: Kafka is slower than the mill",
    "append": "checking messages and writing their blocks to segments, sealing full ones",
    "sync": "making a commit durable",
    "other": "between these: waiting for a thread, and bookkeeping",
}


STILL_SECONDS: Final = 30.0
"""A partition that has something to do, and gets nowhere for as long, is named with the stage that it is in."""


class StageClock:
    """Counts every moment of a partition under one stage, from the first `enter` to `stop`; notices a standstill."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._stage: Stage | None = None
        self._since = 0.0
        self._wait: Stage = "fetch"
        self._stopped = False
        self._place: object = None
        self._moved = now()

    def enter(self, stage: Stage) -> None:
        """Count what has passed for the stage until now, and begin another."""
        self._count(self._passed())
        self._stage = None if self._stopped else stage

    def wait(self) -> None:
        """Enter ``fetch`` or ``idle``, as the last `look` found it."""
        self.enter(self._wait)

    def look(self, *, behind: bool) -> None:
        """Count what has passed in this stage, and stay; ``behind``: there are records that were not taken yet."""
        self._wait = "fetch" if behind else "idle"
        if self._stage in {"fetch", "idle"}:
            self._stage = self._wait
        if self._stage != "other":
            self._count(self._passed())

    def moved(self, place: object, *, has_work: bool) -> None:
        """Take note of where the partition is, and whether it has anything to do there; call this again and again."""
        if place != self._place or not has_work:
            self._place, self._moved = place, self._now()

    @property
    def standstill(self) -> str | None:
        """In which stage the partition has been for `STILL_SECONDS` without a step forward; None if it makes some."""
        if self._stage is None or self._now() - self._moved < STILL_SECONDS:
            return None
        return f"no progress for {STILL_SECONDS:.0f} s, in stage {self._stage}: {STAGES[self._stage]}"

    def divide(self, seconds: Mapping[str, float]) -> None:
        """Count ``seconds`` of what has passed in this stage for others, the rest for this one."""
        passed = self._passed()
        if not self._stopped:
            for stage, part in seconds.items():
                metrics.STAGE_SECONDS.labels(stage).inc(part)
            self._count(max(0.0, passed - sum(seconds.values())))

    def stop(self) -> None:
        """Count what has passed, and nothing more, whatever is entered later."""
        self._stopped = True
        self._count(self._passed())
        self._stage = None

    def _passed(self) -> float:
        now = self._now()
        passed, self._since = now - self._since, now
        return passed

    def _count(self, seconds: float) -> None:
        if self._stage is not None:
            metrics.STAGE_SECONDS.labels(self._stage).inc(seconds)


def waiting_status(waiting: TokenMillError | None, clock: StageClock) -> dict[str, str | None]:
    """Return what a partition's status says of why it makes no progress although nothing is halted."""
    by = None if waiting is None else waiting.brief
    return {"waiting": None if waiting is None else str(waiting), "waiting_by": by, "still": clock.standstill}


class _Span(NamedTuple):
    first: int
    last: int
    first_timestamp: int
    last_timestamp: int


class LagAge:
    """Remembers where each fetch began and ended, and when these records were written: time rises evenly between."""

    def __init__(self) -> None:
        self._spans: deque[_Span] = deque()
        self._last = 0  # the latest timestamp that was passed; 0 where none was
        self._level = 0  # when nothing was left to be taken, the last time that somebody looked

    def begin(self, timestamp: int) -> None:
        """Continue after a record of this timestamp; 0 where there is none."""
        self._spans.clear()
        self._last = timestamp

    def passed(self, records: Sequence[SourceRecord]) -> None:
        """Take what a fetch brought."""
        if records:
            first, last = records[0], records[-1]
            self._spans.append(_Span(first.offset, last.offset, first.timestamp, last.timestamp))
            self._last = max(self._last, last.timestamp)

    def forget(self, offset: int) -> None:
        """Forget what is below ``offset`` altogether."""
        while self._spans and self._spans[0].last < offset:
            self._spans.popleft()

    def level(self, now: int) -> None:
        """Take note that all records that there are at ``now`` have been passed."""
        self._level = max(self._level, now)

    def age(self, offset: int, now: int) -> float | None:
        """Return how many seconds ago the first record from ``offset`` on was written; None if that is unknown."""
        if not self._spans or offset > self._spans[-1].last:
            written = max(self._last, self._level)  # as the last one seen, unless there was nothing to take since
        else:
            span = next(span for span in self._spans if offset <= span.last)
            share = max(0, offset - span.first) / max(1, span.last - span.first)
            written = round(span.first_timestamp + share * (span.last_timestamp - span.first_timestamp))
        return max(0.0, (now - written) / 1000) if written else None


State = Literal["resuming", "running", "waiting", "halted"]
STATES: Final[Mapping[State, str]] = {
    "resuming": "finding the place to continue at",
    "running": "taking what comes",
    "waiting": "for another process's lock, a disk, a missing block, a token partition, a registry, or a sequencer",
    "halted": "stopped until a person acts",
}


OF_PARTITIONS: Final = (
    metrics.PARTITIONS,
    metrics.END_OFFSET,
    metrics.LAG_RECORDS,
    metrics.LAG_SECONDS,
    metrics.DURABLE_LAG_RECORDS,
    metrics.DURABLE_LAG_SECONDS,
    metrics.NEWEST_TOKEN,
    metrics.OPEN_TOKENS,
)
"""Gauges that show a partition only while the worker owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """How far a partition is, and what it does."""

    state: State
    position: int | None
    """The offset up to which records have been taken; None before it is known."""
    durable: int | None = None
    """The offset up to which they are durable downstream, where that is another number."""
    open_tokens: Mapping[str, int] = field(default_factory=dict)
    queued_bytes: int = 0
    stream: str = ""
    newest_timestamp: int = 0
    """Of a partition that is stored: when the newest source record with trainable tokens was written, in milliseconds
    since 1970; 0 while that is unknown."""
    lag_age: LagAge
    clock: StageClock


class Measured(Protocol):
    """A partition that can be measured."""

    def progress(self) -> PartitionProgress:
        """Return how far it is, and what it does."""


def measure(
    partitions: Mapping[TopicPartition, Measured],
    ends: Mapping[TopicPartition, tuple[int, int]],
    *,
    reached: bool = True,
) -> None:
    """Set all gauges of partitions; ``ends`` are their known ends, as `BatchConsumer.ends` returns them.

    What waits has samples only where a broker is ``reached``: else the ends are old.
    """
    now = time.time_ns() // 1_000_000
    for gauge in OF_PARTITIONS:
        gauge.clear()
    queued = 0
    for tp, partition in partitions.items():
        progress = partition.progress()
        queued += progress.queued_bytes
        metrics.PARTITIONS.labels(tp.topic, progress.state).inc()
        for split, tokens in progress.open_tokens.items():
            metrics.OPEN_TOKENS.labels(tp.topic, str(tp.partition), split).set(tokens)
        if progress.newest_timestamp:
            metrics.NEWEST_TOKEN.labels(progress.stream, str(tp.partition)).set(progress.newest_timestamp / 1000)
        end, stable = ends.get(tp, (None, None))
        waits = stable is None or progress.position is None or progress.position < stable
        has_work = reached and progress.state in {"running", "resuming"} and (waits or progress.queued_bytes > 0)
        progress.clock.moved((progress.position, progress.durable), has_work=has_work)
        progress.clock.look(behind=end is None or progress.position is None or progress.position < end)
        if reached and end is not None:
            metrics.END_OFFSET.labels(tp.topic, str(tp.partition)).set(end)
        if reached and end is not None and progress.position is not None:
            _measure_lag(tp, progress, progress.position, end, now)
    metrics.QUEUED_BYTES.set(queued)


def free_bytes(path: Path) -> int:
    """Return the bytes that are free on the disk under ``path``; none where it is gone."""
    try:
        return shutil.disk_usage(path).free
    except OSError:  # its partitions say why; what measures must go on
        return 0


def _measure_lag(tp: TopicPartition, progress: PartitionProgress, position: int, end: int, now: int) -> None:
    lag_age, labels = progress.lag_age, (tp.topic, str(tp.partition))
    if position >= end:
        lag_age.level(now)
    lag_age.forget(position if progress.durable is None else progress.durable)
    taken = (position, metrics.LAG_RECORDS, metrics.LAG_SECONDS)
    durable = (progress.durable, metrics.DURABLE_LAG_RECORDS, metrics.DURABLE_LAG_SECONDS)
    for offset, records, seconds in (taken, durable):
        if offset is not None:
            records.labels(*labels).set(max(0, end - offset))
            if (age := lag_age.age(offset, now) if offset < end else 0.0) is not None:
                seconds.labels(*labels).set(age)


class MillMeter:
    """Looks at the chains between two fetches, when no thread changes them."""

    def __init__(self, topic: str) -> None:
        self.clock = StageClock()
        self._topic = topic
        self._lag_age = LagAge()
        self._chains: Mapping[str, ChainMill] = {}
        self._totals: dict[str, Totals] = {}
        self._open_tokens: dict[str, int] = {}

    def resumed(self, chains: Mapping[str, ChainMill], timestamp: int) -> None:
        """Begin with the chains, by split, as they are; ``timestamp`` is that of the last record before, or 0."""
        self._chains = chains
        self._lag_age.begin(timestamp)
        self._look()

    def begin(self, records: Sequence[SourceRecord]) -> None:
        """Begin to measure what is done with a fetch."""
        self.clock.enter("other")
        self._lag_age.passed(records)

    def fed(self, records: Sequence[SourceRecord], value_bytes: int) -> None:
        """Count a fetch, of which all is done, and wait for the next one."""
        metrics.RECORDS.labels(self._topic).inc(len(records))
        metrics.CONSUMED_BYTES.labels(self._topic).inc(value_bytes)
        before = self._totals
        self._look()
        for split, now in self._totals.items():
            self._count(split, before[split], now)
        self.clock.wait()

    def _look(self) -> None:
        self._totals = {split: chain.totals.copy() for split, chain in self._chains.items()}
        self._open_tokens = {split: chain.open_tokens for split, chain in self._chains.items()}

    def _count(self, split: str, before: Totals, now: Totals) -> None:
        metrics.DOCUMENTS.labels(self._topic, split).inc(now.kept - before.kept)
        metrics.TOKENS.labels(self._topic, split).inc(now.tokens - before.tokens)
        for reason, count in now.filtered.items():
            metrics.FILTERED.labels(self._topic, split, reason).inc(count - before.filtered[reason])
        for name in metrics.PACKING_TOKENS_KINDS:
            metrics.PACKING_TOKENS.labels(self._topic, split, name).inc(now.packing[name] - before.packing[name])
        for step in now.figures.steps:
            earlier = before.figures.step(step.step)
            amounts = (step.passed, earlier.passed), (step.dropped, earlier.dropped), (step.refused, earlier.refused)
            for result, (done, known) in zip(metrics.STEP_RESULTS, amounts, strict=True):
                place = (self._topic, split, step.step, result)
                metrics.STEP_DOCUMENTS.labels(*place).inc(done.documents - known.documents)
                metrics.STEP_TEXT_BYTES.labels(*place).inc(done.size - known.size)
        metrics.OTHER_RECORDS.labels(self._topic, split, "tombstone").inc(now.tombstones - before.tombstones)
        metrics.OTHER_RECORDS.labels(self._topic, split, "flush").inc(now.flushes - before.flushes)

    def progress(self, state: State, position: int, sending: "Mapping[str, Publisher]") -> PartitionProgress:
        """Return how far the partition is; ``sending`` is by split, ``position`` means nothing unless it runs."""
        runs = state == "running"
        return PartitionProgress(
            state=state,
            position=position if runs else None,
            durable=min(self._durable(split, position, way) for split, way in sending.items()) if runs else None,
            open_tokens=self._open_tokens if runs else {},
            queued_bytes=sum(way.pending_bytes for way in sending.values()),
            lag_age=self._lag_age,
            clock=self.clock,
        )

    def _durable(self, split: str, position: int, way: "Publisher") -> int:
        """Return the offset below which all of the chain's tokens are durable; where none wait, that is all."""
        nothing_waits = way.idle and not self._open_tokens[split]
        return position if nothing_waits else min(position, way.durable.next_offset)
