"""Verifying one chain: the reference reads the raw topic; token topic and store follow it block by block."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.genesis import Genesis
from tokenmill.outcomes import Stages
from tokenmill.records import Record
from tokenmill.reference import Reference, ReferenceBlock
from tokenmill.segments import StreamInfo
from tokenmill.totals import Totals

from ..kafka import consumer, read_range
from ..settings import Settings
from .ahead import AheadStages
from .carries import CarryCheck
from .compare import BlockBytes
from .marks import ChainMarks, StoreMark
from .result import Advance, ChainResult
from .sides import StoreSide, TopicSide, difference
from .store_copy import StoreCopy
from .token_topic import TokenTopic

BATCH_RECORDS: Final = 512
"""Records read ahead: libraries tokenize some hundred documents several times faster than one."""
BATCH_BYTES: Final = 2 * 1024 * 1024
"""Bound of their values, so that memory does not grow with the documents; one record may be larger."""
TOPIC_BATCH: Final = 64
"""Blocks between two reports where topic and store are held against each other."""

Report = Callable[[Advance], None]


@dataclass(frozen=True, slots=True)
class ChainTask:
    """All that a process needs to verify one chain."""

    settings: Settings
    genesis: Genesis
    tokenizer: bytes | None
    skips: frozenset[int]
    tokens_topic: str
    marks: ChainMarks
    store: Path | None


async def check_chain(task: ChainTask, open_stages: Callable[[ChainTask], Stages], report: Report) -> ChainResult:
    """Verify a chain up to its marks; the result names the first difference of each side.

    Raises:
        FingerprintError: the libraries installed here do not give the recipe's answers.
        SourceError: retention removed what was being read.
        BrokerError: no broker answers.

    """
    async with consumer(task.settings) as raw_client, consumer(task.settings) as token_client:
        check = _ChainCheck(task, raw_client, token_client, report)
        return await check.run(open_stages)


class _ChainCheck:
    """One chain on its way."""

    def __init__(
        self, task: ChainTask, raw_client: AIOKafkaConsumer, token_client: AIOKafkaConsumer, report: Report
    ) -> None:
        marks, recipe = task.marks, task.genesis.recipe
        store = marks.store
        self._result = ChainResult(
            *(marks.stream, marks.partition, recipe.raw_topic, marks.raw, marks.tokens),
            store_blocks=(store.first, store.end) if store is not None else None,
        )
        tokens = TopicPartition(task.tokens_topic, marks.partition)
        self._task = task
        self._raw_client = raw_client
        self._report = report
        self._topic = TokenTopic(token_client, tokens, recipe, marks.tokens)
        self._topic_side = TopicSide(self._topic, recipe, self._result)
        info = StreamInfo.from_genesis(task.genesis, task.genesis.segment_blocks)
        copy = StoreCopy(task.store or Path(), info, marks.partition, store or StoreMark(0, 0))
        self._store_side = StoreSide(copy, recipe, self._result)
        self._carries = CarryCheck()
        self._last: Record | None = None

    async def run(self, open_stages: Callable[[ChainTask], Stages]) -> ChainResult:
        result, marks = self._result, self._task.marks
        await self._topic.start()
        start = self._task.genesis.start(marks.partition)
        result.reference = marks.raw[0] <= start
        self._note_retention(start)
        if marks.store is not None and marks.store.damage:
            result.differences.append(difference(result, "store", "damaged", marks.store.damage))
            self._store_side.broken = True
        if result.reference:
            await self._against_reference(open_stages(self._task), start)
        else:
            await self._topic_against_store()
        self._conclude()
        return result

    async def _against_reference(self, stages: Stages, start: int) -> None:
        task, result = self._task, self._result
        recipe = task.genesis.recipe
        ahead = AheadStages(stages, recipe.split, task.skips)
        reference = Reference(recipe, ahead.stages, task.marks.partition, start, task.skips)
        dead = []
        async for batch in self._batches(start):
            dead += ahead.prepare(batch)
            before = result.reference_blocks
            for block in reference.blocks(self._watched(reference, batch)):
                await self._compare(block)
            read = sum(len(record.value or b"") for record in batch)
            self._report(Advance(len(batch), result.reference_blocks - before, read))
        self._check_carries(reference, task.marks.raw[1])
        await self._topic_side.finish(result.reference_blocks)
        self._store_side.finish(result.reference_blocks, "the source")
        result.totals, result.open_tokens = reference.totals, reference.open_tokens
        published = self._topic.last.cursor.next_offset if self._topic.last else 0
        result.dead_letters.extend(offset for offset in dead if offset < published)

    async def _compare(self, block: ReferenceBlock) -> None:
        self._result.reference_blocks += 1
        problem = self._carries.at_close(block)
        if problem:
            self._topic_side.differs("account", problem, block.number, block.entry)
        await self._topic_side.compare(block)
        self._store_side.compare(block.number, BlockBytes(block.tokens, block.entry, block.chain))

    async def _topic_against_store(self) -> None:
        number = self._topic.first or 0
        while (block := await self._topic_side.take(number)) is not None:
            self._store_side.compare(number, block.bytes)
            self._topic.carries.clear()
            number += 1
            if number % TOPIC_BATCH == 0:
                self._report(Advance(0, TOPIC_BATCH, 0))
        self._result.totals = self._topic.last.totals if self._topic.last else Totals()

    def _watched(self, reference: Reference, batch: Sequence[Record]) -> Iterator[Record]:
        """Yield the records; between two of them the reference is where a carry may stand."""
        for record in batch:
            if self._topic.carries:
                self._check_carries(reference, record.offset)
            yield record
            self._last = record

    def _check_carries(self, reference: Reference, offset: int) -> None:
        """Check the carries whose next offset is reached, with nothing but gaps from there to ``offset``."""
        due = [carry for carry in self._topic.carries if carry.cursor.next_offset <= offset]
        for carry in due:
            self._topic.carries.remove(carry)
            problem = self._carries.problem(carry, reference, self._last)
            if problem:
                self._topic_side.differs("account", problem, carry.first)

    async def _batches(self, start: int) -> AsyncIterator[list[Record]]:
        marks = self._task.marks
        partition = TopicPartition(self._result.raw_topic, marks.partition)
        batch: list[Record] = []
        size = 0
        async for record in read_range(self._raw_client, partition, start, marks.raw[1]):
            batch.append(Record(record.offset, record.timestamp, record.key, record.value, record.headers))
            size += len(record.value or b"")
            if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _note_retention(self, start: int) -> None:
        """Say what the logs no longer hold, and what that leaves."""
        result, marks = self._result, self._task.marks
        if not result.reference:
            result.notes.append(
                f"{result.raw_topic}[{result.partition}] starts at offset {marks.raw[0]}, the chain at {start}: "
                f"records {start} to {marks.raw[0] - 1} are gone, so topic and store were held against each other only"
            )
        if marks.tokens[0] > 0:
            held = "and holds no block" if self._topic.first is None else f"with block {self._topic.first}"
            result.notes.append(
                f"{self._task.tokens_topic}[{result.partition}] starts at offset {marks.tokens[0]} {held}: what was "
                "before is gone and was verified in the store only"
            )
        if marks.store is not None and marks.store.first > 0:
            result.notes.append(
                f"the store's {result.stream} partition {result.partition} starts with block {marks.store.first}"
            )

    def _conclude(self) -> None:
        result, topic, held = self._result, self._topic, self._result.store_blocks
        result.topic_blocks = (topic.first or 0, topic.next_block)
        result.messages, result.carries = topic.messages, topic.carry_count
        result.dropped, result.lost = topic.dropped, topic.lost
        empty = result.token_range[0] == result.token_range[1] != 0
        if held is not None and held[1] > topic.next_block and not self._topic_side.broken and not empty:
            text = f"the store holds {held[1]} blocks, the topic {topic.next_block}: the topic lost its end"
            self._topic_side.differs("missing", text, topic.next_block)
            result.lost += held[1] - topic.next_block
