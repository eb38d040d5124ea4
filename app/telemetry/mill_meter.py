"""Counts and measures one raw partition on a mill worker."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.records import SourceRecord
from tokenmill.wire.totals import Totals

from ..milling.chain_mill import ChainMill
from ..milling.partition_mill import Milled, Seconds
from . import worker_metrics as metrics
from .measuring import LagAge, PartitionProgress, StageClock, State

if TYPE_CHECKING:  # which counts by what is here
    from ..mill.publisher import Publisher


@dataclass(slots=True)
class FeedResult:
    """What came of a fetch, for its counts."""

    milled: Milled | None = None
    """None where it was given up."""


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
        """Begin with the chains, by split, as they are: what their totals hold was counted by others.

        ``timestamp`` is that of the last record before their place, 0 where there is none.
        """
        self._chains = chains
        self._lag_age.begin(timestamp)
        self._look()

    @contextmanager
    def feeding(self, records: Sequence[SourceRecord]) -> Iterator[FeedResult]:
        """Measure what is done with a fetch; on leaving, count it if its result was set, and wait for the next one."""
        self.clock.enter("other")
        self._lag_age.passed(records)
        result = FeedResult()
        yield result
        if result.milled is not None:
            self._fed(len(records), result.milled.value_bytes)
            self.clock.wait()

    def divide(self, seconds: Seconds) -> None:
        """Count the time that milling took, as the thread measured it, for its stages."""
        self.clock.divide({"decode": seconds.decode, "tokenize": seconds.tokenize, "pack": seconds.pack})

    def _fed(self, records: int, value_bytes: int) -> None:
        metrics.RECORDS.labels(self._topic).inc(records)
        metrics.CONSUMED_BYTES.labels(self._topic).inc(value_bytes)
        before = self._totals
        self._look()
        for split, now in self._totals.items():
            self._count(split, before[split], now)

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
