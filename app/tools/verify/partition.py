"""Verifying one raw partition: its records are read once, and milled again for all its chains."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.milling.outcomes import Stages
from tokenmill.milling.partition_mill import PartitionMill
from tokenmill.reading.resume import resume_point
from tokenmill.records import SourceRecord
from tokenmill.stages.engines import reference_of

from ...kafka.chain_logs import check_source
from ...kafka.clients import consumer, read_batches
from .chain import ChainCheck
from .result import Advance, ChainResult
from .sample import SampleCheck, Sampler
from .task import PartitionTask

FETCHING: Final = {"max_partition_fetch_bytes": 4 * 1024 * 1024, "check_crcs": False}
"""How the clients fetch. Fewer bytes at once cost more for each record, and more leave the processor's caches. The
checksums on the wire are left out: a bit that flips on its way here makes blocks different, and so does not pass."""

Report = Callable[[Advance], None]
OpenStages = Callable[[PartitionTask], Stages]


async def check_partition(task: PartitionTask, open_stages: OpenStages, report: Report) -> list[ChainResult]:
    """Verify the chains up to their marks; the results name the first difference of each side.

    Raises:
        FingerprintError: the libraries installed here do not give the recipe's answers.
        EngineError: the fast engine contradicts the reference.
        SourceError: retention removed what was being read, or the source is another than at the last verification.
        BrokerError: no broker answers.

    """
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(consumer(task.settings, **FETCHING)) for _ in range(1 + len(task.chains))
        ]
        checks = [ChainCheck(chain, client, task.store) for chain, client in zip(task.chains, clients[1:], strict=True)]
        for check in checks:
            await check.start()
            if not check.result.reference:
                await check.topic_against_store()
        recomputed = [check for check in checks if check.result.reference]
        if recomputed:
            await _PartitionCheck(task, recomputed, open_stages, report).run(clients[0])
        return [check.result for check in checks]


class _PartitionCheck:
    """The chains of one partition that are recomputed."""

    def __init__(
        self, task: PartitionTask, checks: Sequence[ChainCheck], open_stages: OpenStages, report: Report
    ) -> None:
        self._task = task
        self._checks = checks
        self._report = report
        stages = open_stages(task)
        self._reference = replace(stages, engine=reference_of(stages.engine))
        self._mill = PartitionMill(stages, [check.mill for check in checks], task.skips)
        self._sampler = Sampler(task.sample, f"{task.raw_topic}/{task.partition}")
        self._dead = array("q")

    async def run(self, client: AIOKafkaConsumer) -> None:
        raw = TopicPartition(self._task.raw_topic, self._task.partition)
        for check in self._checks:
            if check.task.since is not None:
                point = resume_point(check.task.since.carry)
                await check_source(client, raw, point, *check.task.marks.raw)
        async for records in read_batches(client, raw, *self._task.span):
            await self._batch(records)
        for check in self._checks:
            await check.finish(self._dead)

    async def _batch(self, records: Sequence[SourceRecord]) -> None:
        """Verify what one fetch brought."""
        blocks = sum(check.result.reference_blocks for check in self._checks)
        for check in self._checks:
            await check.read_to(records[-1].offset + 1)
        size = sum([len(record.value or b"") for record in records])
        low, high = self._sampler.choose(records, size)
        for part, sampled in self._parts(records, low, high):
            self._part(part, sampled=sampled)
        for check in self._checks:
            check.remember()
        made = sum(check.result.reference_blocks for check in self._checks) - blocks
        self._report(Advance(len(records), made, size))

    def _parts(
        self, records: Sequence[SourceRecord], low: int, high: int
    ) -> Iterator[tuple[Sequence[SourceRecord], bool]]:
        """Divide records where a carry stands, and around the sample ``[low, high)``; tell which parts are of it."""
        first, last = records[0].offset, records[-1].offset
        cuts = {offset for check in self._checks for offset in check.carries_within(first, last)}
        bounds = {0, low, high, len(records)}
        if cuts:
            bounds |= {sum(record.offset < cut for record in records) for cut in cuts}
        ordered = sorted(bounds)
        for start, stop in pairwise(ordered):
            yield records[start:stop], low <= start < high

    def _part(self, records: Sequence[SourceRecord], *, sampled: bool) -> None:
        for check in self._checks:
            check.check_carries(records[0].offset)
        samples = []
        if sampled:
            samples = [SampleCheck(check, self._reference, self._task.skips) for check in self._checks]
        milled = self._mill.feed(records)
        self._dead.extend(outcome.record.offset for outcome in milled.dead_letters)
        for check in self._checks:
            check.compare(milled.messages[check.recipe.split])
        for sample in samples:
            sample.compare(records, milled.messages)
