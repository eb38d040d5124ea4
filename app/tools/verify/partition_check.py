"""One raw partition: its records are read once, and milled again for all its chains, in a process of its own.

Each partition is computed by one core, and has nothing to do with the others. Processes are spawned, so that no lock or
connection of this one is copied. None outlives this process.
"""

import asyncio
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from operator import add
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import TokenMillError
from tokenmill.records import SourceRecord
from tokenmill.wire.genesis import Genesis

from ...kafka import fastpath
from ...kafka.clients import consumer, read_batches
from ...kafka.schema_registry import schemas_for_command
from ...kafka.token_topic import check_source
from ...milling.outcomes import Stages
from ...milling.partition_mill import PartitionMill
from ...milling.recipe_stages import reopen_stages
from ...milling.tokenizers import RAW_BYTES, TokenizerFile, reference_of
from ...processes import collect_seldom, end_with_parent, keep_loaded, side_processes
from ...settings import Settings
from .chain_check import ChainCheck, ChainTask
from .reference_sample import ReferenceSample, SampleCheck, Sampler
from .verify_result import Advance, ChainResult


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One raw partition: its records are read, decoded and tokenized once for all its chains."""

    settings: Settings
    tokenizer: bytes | None
    skips: frozenset[int]
    chains: Sequence[ChainTask]
    store: Path | None
    sample: "ReferenceSample"
    lists: Mapping[str, bytes] = field(default_factory=dict)
    """Those of the recipe's steps, by SHA-256."""

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.chains[0].marks.partition

    @property
    def raw_topic(self) -> str:
        """The raw topic's name."""
        return self.chains[0].genesis.recipe.raw_topic

    @property
    def stages_key(self) -> bytes:
        """What decides the stages: equal for all splits of a raw topic."""
        return stages_key(self.chains[0].genesis)

    @property
    def span(self) -> tuple[int, int]:
        """The source offsets that are read; empty where no chain is recomputed."""
        starts = [chain.start for chain in self.chains if chain.is_recomputed]
        first, end = self.chains[0].marks.raw
        return (max(first, min(starts)), end) if starts else (end, end)


def stages_key(genesis: Genesis) -> bytes:
    """Return what chains have in common that one pass over their records can serve."""
    return replace(genesis.recipe, split="").fingerprint


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
                await check_source(client, raw, check.task.since.carry.cursor, *check.task.marks.raw)
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
        """Divide records where there is a carry, and around the sample ``[low, high)``; say which parts are of it."""
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


REPORT_SECONDS: Final = 0.2
"""How often a process says how far it is."""


def check_partitions(
    tasks: Sequence[PartitionTask], processes: int
) -> Iterator[tuple[int, Advance | list[ChainResult]]]:
    """Verify the partitions, ``processes`` at a time; yield, with each one's index, its advances and then its results.

    Raises:
        TokenMillError: what a partition's check raised, or a process that ended without a result.

    """
    waiting = deque(enumerate(tasks))
    with _workers(min(processes, len(tasks))) as workers:
        busy: dict[Connection, int] = {}
        for connection in workers:
            busy[connection] = _give(connection, waiting)
        while busy:
            for ready in wait(list(busy)):
                connection = next(known for known in busy if known is ready)
                answer = _receive(connection, workers[connection], tasks[busy[connection]])
                yield busy[connection], answer
                if isinstance(answer, list):
                    del busy[connection]
                    if waiting:
                        busy[connection] = _give(connection, waiting)


def _give(connection: Connection, waiting: deque[tuple[int, PartitionTask]]) -> int:
    index, task = waiting.popleft()
    _send(connection, task)
    return index


def _send(connection: Connection, message: object) -> None:
    with suppress(OSError):  # the process has ended: who waits for its answer says so
        connection.send(message)


def _receive(connection: Connection, process: BaseProcess, task: PartitionTask) -> Advance | list[ChainResult]:
    try:
        answer = connection.recv()
    except (EOFError, OSError):  # it may have ended with something unread
        process.join()
        raise TokenMillError(
            f"the process that verified {task.raw_topic} partition {task.partition} ended with code "
            f"{process.exitcode} (-9: killed, perhaps for its memory; else see above): run again with fewer processes"
        ) from None
    if isinstance(answer, TokenMillError):
        raise answer
    if not isinstance(answer, Advance | list):
        raise TypeError(answer)
    return answer


@contextmanager
def _workers(count: int) -> Iterator[dict[Connection, BaseProcess]]:
    """Return a context of processes that verify; each has its share of the cores."""
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, count))
    fast = fastpath.is_available()  # asked here, so that the log says it once
    with side_processes(count, "verify", _work) as workers:
        for connection in workers:
            _send(connection, (threads, fast))
        yield workers


def _work(connection: Connection) -> None:
    """Verify the partitions that come through the pipe, until it closes."""
    collect_seldom()
    end_with_parent()
    opened: dict[bytes, Stages] = {}

    def stages(task: PartitionTask) -> Stages:
        """Open a raw topic's stages once for all its partitions."""
        key = task.stages_key
        if key not in opened:
            chain = task.chains[0]
            name = RAW_BYTES if task.tokenizer is None else chain.tokens_topic
            file = TokenizerFile(name, task.tokenizer)
            recipe = chain.genesis.recipe
            schemas = schemas_for_command(task.settings, recipe.decode)
            opened[key] = reopen_stages(recipe, file, task.settings.engine, schemas, task.lists)
            keep_loaded()
        return opened[key]

    try:
        threads, fast = connection.recv()
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # read by tokenizers when it first encodes
        if fast:
            fastpath.install()
        while True:
            task: PartitionTask = connection.recv()
            try:
                report = _Reports(connection)
                answer: list[ChainResult] | TokenMillError = asyncio.run(check_partition(task, stages, report))
            except TokenMillError as error:
                answer = error
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the process that started this one is gone


class _Reports:
    """Sends advances through the pipe, added up: a message for each fetch would wake up two processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sum = Advance(0, 0, 0)
        self._sent = time.monotonic()

    def __call__(self, advance: Advance) -> None:
        self._sum = Advance(*map(add, self._sum, advance))
        if time.monotonic() - self._sent >= REPORT_SECONDS:
            self._connection.send(self._sum)
            self._sum, self._sent = Advance(0, 0, 0), time.monotonic()
