"""One chain on its way through a verification: what must be is compared with token topic and store, run by run."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.reading.resume import ResumePoint, genesis_point, resume_point
from tokenmill.store import StreamInfo
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.message import Message
from tokenmill.wire.totals import Totals

from ...kafka.ignoring import IgnoreList
from ...milling.chain_mill import ChainMill
from .comparison import ExpectedBlocks, difference, other_blocks
from .earlier import VerifiedChain
from .era_check import EraEnds, OtherHashes
from .store_side import StoreCopy, StoreSide
from .topic_side import TokenTopic, TopicSide
from .verify_marks import ChainMarks, StoreMark
from .verify_result import ChainResult


@dataclass(frozen=True, slots=True)
class ChainTask:
    """One chain."""

    genesis: Genesis
    tokens_topic: str
    marks: ChainMarks
    ignored: IgnoreList
    """Messages of the token topic that its readers pass over."""
    since: VerifiedChain | None = None
    """Where an earlier verification ended; None: begin where the chain does."""
    ends: Path | None = None
    """The file of `EraEndsFiles` with the ends of the eras that were not verified before; None: there are none."""

    @property
    def start(self) -> int:
        """The source offset from which the chain is recomputed."""
        if self.since is not None:
            return self.since.carry.cursor.next_offset
        return self.genesis.start(self.marks.partition)

    @property
    def is_recomputed(self) -> bool:
        """Whether the raw topic still reaches the start; where not, topic and store are compared with each other."""
        return self.marks.raw[0] <= self.start


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
        self.ends: set[int] = set()
        """The blocks before which the topic's messages end, as far as they were read ahead."""
        tokens = TopicPartition(task.tokens_topic, marks.partition)
        self._topic = TokenTopic(client, tokens, self.recipe, marks.tokens, task.ignored, since=task.since)
        info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
        self._ends = EraEnds(task.ends)
        self._other = OtherHashes(client, tokens, marks.tokens, since=task.since, store=store, info=info)
        self._topic_side = TopicSide(self._topic, self.recipe, self.result, self._ends)
        begin = task.since.carry.first if task.since is not None else 0
        copy = StoreCopy(store or Path(), info, marks.partition, held or StoreMark(0, 0), since=begin)
        self._store_side = StoreSide(copy, self.recipe, self.result)
        self.result.reference_blocks = begin
        self._mill = ChainMill(
            self.recipe, self._point(), message_bytes=ONE_MESSAGE, ends=self.ends, roll=self._topic.roll
        )

    @property
    def mill(self) -> ChainMill:
        """What computes the chain, the fast way."""
        return self._mill

    async def start(self) -> None:
        """Find where the topic begins, and note what cannot be verified."""
        await self._topic.start()
        self._note_retention()
        held = self.task.marks.store
        if held is not None and held.damage:
            self.result.differences.append(difference(self.result, "store", "damaged", held.damage))
            self._store_side.broken = True

    async def read_to(self, offset: int) -> None:
        """Read ahead the messages with blocks of the records below ``offset``."""
        await self._topic.read_to(offset)
        self.ends.clear()
        self.ends.update(self._topic.ends)

    def carries_within(self, first: int, last: int) -> set[int]:
        """Return the source offsets within ``(first, last]`` before which there is a carry."""
        return {
            carry.cursor.next_offset
            for carry in self._topic.carries
            if first < carry.cursor.next_offset <= last and carry.cursor.next_offset > self.task.start
        }

    def compare(self, messages: Collection[Message]) -> None:
        """Compare what was milled next with both sides: the topic a message at a time, the store's files at once."""
        runs = [ExpectedBlocks.of(message) for message in messages]
        for message, blocks in zip(messages, runs, strict=True):
            self.result.reference_blocks = message.end
            self._topic_side.compare(message, blocks)
        if runs and self.result.store_blocks is not None:
            self._store_side.compare(ExpectedBlocks.joined(runs))

    def check_carries(self, offset: int) -> None:
        """Check the carries whose next offset is reached, with nothing but gaps from there to ``offset``."""
        for carry in [carry for carry in self._topic.carries if carry.cursor.next_offset <= offset]:
            self._topic.carries.remove(carry)
            if carry.cursor.next_offset < self.task.start:
                continue  # a late writer's, from before this verification's beginning
            expected = self._mill.carry(carry.cursor.next_offset, by_value=bool(carry.open_tokens))
            if expected is not None:
                self._topic_side.check_carry(carry, expected)
            if self._topic.last is None or carry.cursor.place > self._topic.last.cursor.place:
                self._topic.last = carry

    def remember(self) -> None:
        """Note that all up to here is right, if it is, and in the topic and in the store."""
        blocks, store = self.result.reference_blocks, self._store_side
        in_store = self.result.store_blocks is None or (store.next_block >= blocks and not store.broken)
        if in_store and self._topic.next_block >= blocks and not self._topic_side.broken:
            carry = self._mill.carry(self._mill.next_offset, by_value=True)
            self.result.verified = VerifiedChain(carry, self._topic.next_offset) if carry is not None else None

    async def finish(self, dead: Collection[int]) -> None:
        """After the last record below the mark: neither side may hold more.

        ``dead`` are the offsets of all records that must be dead-lettered.
        """
        result = self.result
        self.check_carries(result.raw_range[1])
        for carry in self._topic.carries:
            text = f"a carry before it is at source offset {carry.cursor.next_offset}, past the source's end"
            self._topic_side.differs("account", text, carry.first)
        await self._topic_side.finish(self.result.reference_blocks)
        self._store_side.finish(self.result.reference_blocks, "the source")
        await self._check_other_ends()
        result.totals, result.open_tokens = self._mill.totals, self._mill.open_tokens
        published = self._topic.last.cursor.next_offset if self._topic.last else 0
        result.dead_letters.extend(offset for offset in dead if self.task.start <= offset < published)
        self._conclude()

    async def topic_against_store(self) -> None:
        """Compare the two sides with each other: the source is gone."""
        while True:
            await self._topic.fill()
            run = self._topic_side.take(0, ONE_MESSAGE)
            if run is None:
                break
            self._store_side.compare(ExpectedBlocks(run.first, run.tokens, run.entries, run.chains))
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
            found = await self._other.chain_before(block, use_store=not self._store_side.broken)
            if found is None:
                unknown += 1
            elif found == chain:
                result.era_ends += 1
            else:
                result.differences.append(other_blocks(result, era, block))
                return
        if unknown:
            result.notes.append(
                f"{unknown} eras end in partition {result.partition} of {result.stream} before blocks that neither "
                "topic nor store holds any more: their hashes could not be checked there"
            )

    def _point(self) -> ResumePoint:
        """Return the point at which this verification begins."""
        if self.task.since is not None:
            return resume_point(self.task.since.carry)
        partition = self.task.marks.partition
        return genesis_point(self.task.start, genesis_hash(self.recipe.fingerprint, partition))

    def _note_retention(self) -> None:
        """Say what the logs no longer hold, and what that leaves."""
        result, marks, start = self.result, self.task.marks, self.task.start
        if not result.reference:
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
