"""One raw partition: its records are read once, and milled again for all its chains, in a process of its own."""

import asyncio
import os
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

import tokenmill.bucket.cache  # noqa: F401 - the store may be one that is fetched as it is read
from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, StoreError, TokenMillError
from tokenmill.reading import check_source, genesis_point, resume_point
from tokenmill.recipe import Genesis
from tokenmill.store import StreamInfo, open_partition, read_stream, streams_in
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import Message
from tokenmill.wire.totals import Totals

from ...kafka import fastpath
from ...kafka.clients import consumer, read_batches
from ...kafka.control_log import IgnoreList
from ...kafka.schema_registry import schemas_for_command
from ...kafka.token_topic import KafkaLogs, chain_after
from ...milling.outcomes import Stages
from ...milling.partition_mill import ChainMill, PartitionMill
from ...milling.recipe_stages import reopen_stages
from ...milling.tokenizers import RAW_BYTES, TokenizerFile, reference_of
from ...processes import keep_loaded, side_processes
from ...settings import Settings
from .domain_check import JudgedLog, JudgedRecords
from .era_check import EraEnds
from .sides import ReferenceSample, SampleCheck, Sampler, StoreSide, TokenTopic, TopicSide
from .verify_bounds import ChainMarks, StoreMark, VerifiedChain
from .verify_result import Advance, BlockRun, ChainResult


@dataclass(frozen=True, slots=True)
class ChainTask:
    """One chain."""

    genesis: Genesis
    tokens_topic: str
    marks: ChainMarks
    ignored: IgnoreList
    since: VerifiedChain | None = None
    """Where an earlier verification ended; None: begin where the chain does."""
    ends: Path | None = None
    """The file of `EraEndsFiles` with the ends of the eras that were not verified before; None: there are none."""
    judged: JudgedLog | None = None

    @property
    def start(self) -> int:
        """The source offset from which the chain is recomputed."""
        if self.since is not None:
            return self.since.carry.cursor.next_offset
        return self.genesis.start(self.marks.partition)

    @property
    def is_recomputed(self) -> bool:
        """Whether the logs still reach the start; where not, topic and store are compared with each other."""
        judged = self.judged.begin.next_offset if self.judged is not None else 0
        return max(self.marks.raw[0], judged) <= self.start


ONE_MESSAGE = 1 << 62
"""Bytes at which the mill here cuts its messages: never; they end where the topic's do, or a batch does."""


class ChainCheck:
    """A chain, from the place where its verification begins."""

    def __init__(self, task: ChainTask, client: AIOKafkaConsumer, store: Path | None) -> None:
        """Read the token topic with ``client``, which is this object's alone, and the files of ``store``."""
        marks, genesis = task.marks, task.genesis
        held = marks.store
        self.recipe = genesis.recipe
        self.result = ChainResult(
            *(marks.stream, marks.partition, self.recipe.raw_topic, marks.raw, marks.tokens),
            reference=task.is_recomputed,
            since=task.start,
            store_blocks=(held.first, held.end) if held is not None else None,
        )
        self.task = task
        self.ends: set[int] = set()  # the blocks before which the topic's messages end, as far as they were read ahead
        tokens = TopicPartition(task.tokens_topic, marks.partition)
        self._topic = TokenTopic(client, tokens, self.recipe, marks.tokens, task.ignored, since=task.since)
        info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
        if store is not None and info.name in streams_in(store):
            info = read_stream(store, info.name)  # segments out of a bucket may be smaller
        self._ends = EraEnds(task.ends)
        self._reader = cache(partial(open_partition, store, info.name, marks.partition)) if store is not None else None
        self._topic_hash = partial(chain_after, client, tokens, self.recipe.fingerprint, span=marks.tokens)
        self._topic_side = TopicSide(self._topic, self.recipe, self.result, self._ends)
        begin = task.since.carry.first if task.since is not None else 0
        self._store_side = StoreSide(store or Path(), info, self.result, held or StoreMark(0, 0), since=begin)
        self.result.reference_blocks = begin
        start = genesis_point(task.start, genesis_hash(self.recipe.fingerprint, marks.partition))
        point = resume_point(task.since.carry) if task.since is not None else start
        self.mill = ChainMill(self.recipe, point, message_bytes=ONE_MESSAGE, ends=self.ends)

    async def start(self) -> None:
        """Find where the topic begins, and note what cannot be verified."""
        await self._topic.start()
        result, marks, start, judged = self.result, self.task.marks, self.task.start, self.task.judged
        if not result.reference and marks.raw[0] <= start and judged is not None:
            topic = judged.domain.verdicts_topic(result.raw_topic)
            result.notes.append(
                f"{topic}[{result.partition}] no longer holds all verdicts on what {result.stream} was made of, so "
                "topic and store were compared with each other only"
            )
        elif not result.reference:
            result.notes.append(
                f"{result.raw_topic}[{result.partition}] starts at offset {marks.raw[0]}, the chain at {start}: "
                f"records {start} to {marks.raw[0] - 1} are gone, so topic and store were compared with each other only"
            )
        if marks.tokens[0] > (self.task.since.token_offset if self.task.since is not None else 0):
            held = "and holds no block" if self._topic.first is None else f"with block {self._topic.first}"
            result.notes.append(
                f"{self.task.tokens_topic}[{result.partition}] starts at offset {marks.tokens[0]} {held}: what was "
                "before is gone and was verified in the store only"
            )
        if marks.store is not None and marks.store.first > 0:
            result.notes.append(
                f"the store's {result.stream} partition {result.partition} starts with block {marks.store.first}"
            )

    async def read_to(self, offset: int) -> None:
        """Read ahead the messages with blocks of the records below ``offset``."""
        await self._topic.read_to(offset)
        self.ends.clear()
        self.ends.update(self._topic.ends)

    def end_at(self, offset: int) -> None:
        """Note that from here on it is not known what duplicates are."""
        result = self.result
        result.raw_range, result.unjudged = (result.raw_range[0], offset), result.raw_range[1] - offset
        result.notes.append(
            f"{result.raw_topic}[{result.partition}] has no verdict yet on the document at offset {offset}: "
            f"{result.stream} was verified up to there"
        )

    def carries_within(self, first: int, last: int) -> set[int]:
        """Return the source offsets within ``(first, last]`` before which there is a carry."""
        return {
            carry.cursor.next_offset
            for carry in self._topic.carries
            if first < carry.cursor.next_offset <= last and carry.cursor.next_offset > self.task.start
        }

    def compare(self, messages: Collection[Message]) -> None:
        """Compare what was milled next with both sides: the topic a message at a time, the store's files at once."""
        runs = [BlockRun.of(message) for message in messages]
        for message, blocks in zip(messages, runs, strict=True):
            self.result.reference_blocks = message.end
            self._topic_side.compare(message, blocks)
        if runs and self.result.store_blocks is not None:
            self._store_side.compare(BlockRun.joined(runs))

    def check_carries(self, offset: int) -> None:
        """Check the carries whose next offset is reached, with nothing but gaps from there to ``offset``."""
        for carry in [carry for carry in self._topic.carries if carry.cursor.next_offset <= offset]:
            self._topic.carries.remove(carry)
            if carry.cursor.next_offset < self.task.start:
                continue  # a late writer's, from before this verification's beginning
            expected = self.mill.carry(carry.cursor.next_offset, by_value=bool(carry.open_tokens))
            if expected is not None:
                self._topic_side.check_carry(carry, expected)
            if self._topic.last is None or carry.cursor.place > self._topic.last.cursor.place:
                self._topic.last = carry

    def remember(self) -> None:
        """Note that all up to here is right, if it is, and in the topic and in the store."""
        blocks, store = self.result.reference_blocks, self._store_side
        in_store = self.result.store_blocks is None or (store.next_block >= blocks and not store.broken)
        if in_store and self._topic.next_block >= blocks and not self._topic_side.broken:
            carry = self.mill.carry(self.mill.next_offset, by_value=True)
            self.result.verified = VerifiedChain(carry, self._topic.next_offset) if carry is not None else None

    async def finish(self, dead: Collection[int]) -> None:
        """After the last record below the mark neither side may hold more; ``dead``: what must be dead-lettered."""
        result = self.result
        self.check_carries(result.raw_range[1])
        for carry in self._topic.carries:
            text = f"a carry before it is at source offset {carry.cursor.next_offset}, past the source's end"
            self._topic_side.differs("account", text, carry.first)
        await self._topic_side.finish(self.result.reference_blocks)
        self._store_side.finish(self.result.reference_blocks, "the source")
        await self._check_other_ends()
        result.totals, result.open_tokens = self.mill.totals, self.mill.open_tokens
        published = self._topic.last.cursor.next_offset if self._topic.last else 0
        result.dead_letters.extend(offset for offset in dead if self.task.start <= offset < published)
        self._conclude()

    async def topic_against_store(self) -> None:
        """Compare the two sides with each other: the source is gone."""
        await self._topic.fill()
        while (run := self._topic_side.take(0, ONE_MESSAGE)) is not None:
            self._store_side.compare(run)
            await self._topic.fill()
        await self._check_other_ends()
        self._topic.carries.clear()
        self.result.totals = self._topic.last.totals if self._topic.last else Totals()
        self._conclude()

    async def _check_other_ends(self) -> None:
        """Check the ends of eras that no block passed: below where this began, or where the topic does."""
        result, unknown = self.result, 0
        empty = result.token_range[0] == result.token_range[1] != 0
        for block, era, chain in self._ends.rest():
            if self._topic_side.broken or self._ends.wrong:
                return
            if block > self._topic.next_block and not empty:
                self._topic_side.era_lacks_blocks(era, block)
                return
            found = await self._chain_before(block)
            if found is None:
                unknown += 1
            elif found == chain:
                result.era_ends += 1
            else:
                result.differences.append(result.other_blocks(era, block))
                return
        if unknown:
            result.notes.append(
                f"{unknown} eras end in partition {result.partition} of {result.stream} before blocks that neither "
                "topic nor store holds any more: their hashes could not be checked there"
            )

    async def _chain_before(self, block: int) -> bytes | None:
        """Return the hash before a block that was not read; None where nothing holds the block before it any more."""
        if (since := self.task.since) is not None and since.carry.first == block:
            return since.carry.after
        if self._reader is not None and not self._store_side.broken:
            with suppress(DamagedError, StoreError):
                if (found := self._reader().chain_before(block)) is not None:
                    return found
        return await self._topic_hash(block - 1)

    def _conclude(self) -> None:
        result, topic, held = self.result, self._topic, self.result.store_blocks
        since = self.task.since.carry.first if self.task.since is not None else 0
        result.topic_blocks = (topic.first if topic.first is not None else since, topic.next_block)
        result.messages, result.carries = topic.messages, topic.carry_count
        result.dropped, result.lost = topic.dropped, topic.lost
        if topic.ignored:
            result.notes.append(
                f"{self.task.tokens_topic}[{result.partition}]: passed over the messages on the ignore list at offsets "
                f"{', '.join(map(str, sorted(topic.ignored)))}"
            )
        empty = result.token_range[0] == result.token_range[1] != 0
        if held is not None and held[1] > topic.next_block and not self._topic_side.broken and not empty:
            text = f"the store holds {held[1]} blocks, the topic {topic.next_block}: the topic lost its end"
            self._topic_side.differs("missing", text, topic.next_block)
            result.lost += held[1] - topic.next_block


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

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.chains[0].marks.partition

    @property
    def raw_topic(self) -> str:
        """The raw topic's name."""
        return self.chains[0].genesis.recipe.raw_topic

    @property
    def span(self) -> tuple[int, int]:
        """The source offsets that are read; empty where no chain is recomputed."""
        starts = [chain.start for chain in self.chains if chain.is_recomputed]
        first, end = self.chains[0].marks.raw
        return (max(first, min(starts)), end) if starts else (end, end)


FETCHING: Final = {"max_partition_fetch_bytes": 4 * 1024 * 1024, "check_crcs": False}
"""How the clients fetch. Fewer bytes at once cost more for each record, and more leave the processor's caches. The
checksums on the wire are left out: a bit that flips on its way here makes blocks different, and so does not pass."""

Report = Callable[[Advance], None]
OpenStages = Callable[[PartitionTask], Stages]


async def check_partition(task: PartitionTask, open_stages: OpenStages, report: Report) -> list[ChainResult]:
    """Verify the chains up to their marks; the results name the first difference of each side.

    Raises FingerprintError where the libraries here differ from the recipe's, EngineError where the fast engine
    contradicts the reference, and SourceError where retention removed what was being read, or the source is another
    than before.
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
        if recomputed := [check for check in checks if check.result.reference]:
            partition = _PartitionCheck(task, recomputed, open_stages, report)
            if partition.judged is not None:
                more = [await stack.enter_async_context(consumer(task.settings, **FETCHING)) for _ in range(2)]
                await partition.judged.open(task.span[0], *more)
            await partition.run(clients[0])
        return [check.result for check in checks]


class _PartitionCheck:
    def __init__(
        self, task: PartitionTask, checks: Sequence[ChainCheck], open_stages: OpenStages, report: Report
    ) -> None:
        self._task, self._checks, self._report = task, checks, report
        stages = open_stages(task)
        self._reference = replace(stages, engine=reference_of(stages.engine))
        self._mill = PartitionMill(stages, [check.mill for check in checks], task.skips)
        log = task.chains[0].judged
        self.judged = JudgedRecords(log, self._mill, stages.seen, task.skips) if log is not None else None
        self._sampler = Sampler(task.sample, f"{task.raw_topic}/{task.partition}")
        self._dead = array("q")

    async def run(self, client: AIOKafkaConsumer) -> None:
        raw = TopicPartition(self._task.raw_topic, self._task.partition)
        for check in self._checks:
            if check.task.since is not None:
                await check_source(KafkaLogs(client, raw, raw), check.task.since.carry.cursor, check.task.marks.raw)
        async for records in read_batches(client, raw, *self._task.span):
            judged = records if self.judged is None else await self.judged.take(records)
            if judged:
                await self._batch(judged)
            if len(judged) < len(records):
                for check in self._checks:
                    check.end_at(records[len(judged)].offset)
                break
        if self.judged is not None:
            self._checks[0].result.differences.extend(self.judged.differences)
        for check in self._checks:
            await check.finish(self._dead)

    async def _batch(self, records: Sequence[SourceRecord]) -> None:
        blocks = sum(check.result.reference_blocks for check in self._checks)
        for check in self._checks:
            await check.read_to(records[-1].offset + 1)
        size = sum([len(record.value or b"") for record in records])
        first, last = records[0].offset, records[-1].offset
        cuts = {offset for check in self._checks for offset in check.carries_within(first, last)}
        for part, sampled in self._sampler.parts(records, cuts):
            self._part(part, sampled=sampled)
        for check in self._checks:
            check.remember()
        made = sum(check.result.reference_blocks for check in self._checks) - blocks
        self._report(Advance(len(records), made, size))

    def _part(self, records: Sequence[SourceRecord], *, sampled: bool) -> None:
        for check in self._checks:
            check.check_carries(records[0].offset)
        checks, skips = self._checks if sampled else (), self._task.skips
        samples = [SampleCheck(check.mill, check.result, self._reference, skips) for check in checks]
        milled = self._mill.feed(records, self.judged.look(records) if self.judged is not None else None)
        self._dead.extend(outcome.record.offset for outcome in milled.dead_letters)
        for check in self._checks:
            check.compare(milled.messages[check.recipe.split])
        for sample in samples:
            sample.compare(records, milled.messages)


def check_partitions(
    tasks: Sequence[PartitionTask], processes: int
) -> Iterator[tuple[int, Advance | list[ChainResult]]]:
    """Verify partitions, ``processes`` at a time; yield, with each one's index, its advances and then its results."""
    waiting = deque(enumerate(tasks))
    with _workers(min(processes, len(tasks))) as workers:
        idle, busy = list(workers), dict[Connection, int]()
        while busy or waiting:
            while idle and waiting:
                busy[idle[-1]], task = waiting.popleft()
                _send(idle.pop(), task)
            for ready in wait(list(busy)):
                connection = next(known for known in busy if known is ready)
                answer = _receive(connection, workers[connection], tasks[busy[connection]])
                yield busy[connection], answer
                if isinstance(answer, list):
                    del busy[connection]
                    idle.append(connection)


def _send(connection: Connection, message: object) -> None:
    with suppress(OSError):  # the process has ended, as the reader of its answer will say
        connection.send(message)


def _receive(connection: Connection, process: BaseProcess, task: PartitionTask) -> Advance | list[ChainResult]:
    try:
        answer: Advance | list[ChainResult] | TokenMillError = connection.recv()
    except (EOFError, OSError):  # it may have ended with something unread
        process.join()
        raise TokenMillError(
            f"the process that verified {task.raw_topic} partition {task.partition} ended with code "
            f"{process.exitcode} (-9: killed, perhaps for its memory; else see above): run again with fewer processes"
        ) from None
    if isinstance(answer, TokenMillError):
        raise answer
    return answer


@contextmanager
def _workers(count: int) -> Iterator[dict[Connection, BaseProcess]]:
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, count))
    with side_processes(count, "verify", _work) as workers:
        for connection in workers:
            _send(connection, threads)
        yield workers


def _work(connection: Connection) -> None:
    """Verify the partitions that come through the pipe, until it closes."""
    opened: dict[bytes, Stages] = {}  # by what all splits of a raw topic have in common

    def stages(task: PartitionTask) -> Stages:
        chain, recipe = task.chains[0], task.chains[0].genesis.recipe
        if recipe.division not in opened:
            file = TokenizerFile(RAW_BYTES if task.tokenizer is None else chain.tokens_topic, task.tokenizer)
            schemas = schemas_for_command(task.settings, recipe.decode)
            opened[recipe.division] = reopen_stages(recipe, file, task.settings.engine, schemas, task.lists)
            keep_loaded()
        return opened[recipe.division]

    os.environ["RAYON_NUM_THREADS"] = str(connection.recv())  # read by tokenizers when it first encodes
    fastpath.install()
    while True:
        task: PartitionTask = connection.recv()
        try:
            connection.send(asyncio.run(check_partition(task, stages, connection.send)))
        except TokenMillError as error:
            connection.send(error)
