"""A stream of one partition on brokers in memory, milled here: what a verification looks at, in milliseconds.

Chains, eras and marks are checked by the real code; only brokers and the processes of a verification are missing.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryKafka
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.mill.recipes import RawTopicPlan, plan_topic
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify.partition_check import ChainTask, PartitionTask, check_partition
from tokenmill.app.tools.verify.sides import ReferenceSample
from tokenmill.app.tools.verify.verify_bounds import ChainMarks, StoreMark, VerifiedChain, store_mark
from tokenmill.app.tools.verify.verify_result import ChainResult
from tokenmill.reading import Acceptor, Taken, genesis_point
from tokenmill.recipe import Genesis
from tokenmill.store import PartitionWriter, Store, StreamInfo
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import Message

TEXTS = [f"text {number:02} of all".encode() for number in range(12)]
"""Of 14 tokens and an end each: 45 blocks of 4 tokens."""


class MemoryVerification:
    """One chain: its raw topic, its token topic, and what may be milled of it."""

    def __init__(self, kafka: MemoryKafka, settings: Settings, texts: Sequence[bytes]) -> None:
        """Write the raw topic; nothing is on the token topic yet."""
        (stream,) = settings.streams()
        self.kafka, self.settings = kafka, settings
        self.plan: RawTopicPlan = plan_topic(settings, stream.raw_topic)
        self.recipe = self.plan.recipes[stream]
        self.genesis = Genesis(stream.name, self.recipe, (0,), settings.segment_blocks)
        self.settled = Settled(stream, self.genesis, ControlLog(stream.name, self.genesis))
        self.raw = TopicPartition(stream.raw_topic, 0)
        self.tokens = TopicPartition(stream.tokens_topic, 0)
        kafka.logs[self.tokens] = []
        kafka.logs[self.raw] = []
        for text in texts:
            kafka.append(self.raw.topic, self.raw.partition, text)

    def milled(self, blocks: int = 2, records: slice = slice(None)) -> list[Message]:
        """Return the messages of some records, of so many blocks each, and the carry behind them."""
        chain = ChainMill(self.recipe, genesis_point(0, genesis_hash(self.recipe.fingerprint, 0)), message_bytes=1)
        fed = PartitionMill(self.plan.stages, [chain]).feed(self.kafka.logs[self.raw][records])
        single = fed.messages[self.recipe.split]
        carry = chain.carry(chain.next_offset)
        whole = [joined(single[first : first + blocks]) for first in range(0, len(single), blocks)]
        return [*whole, *([carry] if carry is not None else [])]

    def carry_after(self, records: int) -> Message:
        """Return the carry behind the first so many records."""
        carry = self.milled(records=slice(records))[-1]
        assert carry.is_carry
        return carry

    def publish(self, messages: Sequence[Message]) -> None:
        """Put messages on the token topic."""
        self.kafka.send(self.tokens.topic, 0, messages)

    def store(self, messages: Sequence[Message]) -> Path:
        """Write messages to the settings' store."""
        return write_store(self.settings.store, self.genesis, messages)

    async def check(
        self,
        store: Path | None = None,
        *,
        mark: StoreMark | None = None,
        since: VerifiedChain | None = None,
        ends: Path | None = None,
        raw: tuple[int, int] | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> ChainResult:
        """Verify the chain up to what is there now, unless a mark says otherwise; every record is sampled."""
        name = self.settled.stream.name
        raw = raw or (0, len(self.kafka.logs[self.raw]))
        tokens = tokens or (0, len(self.kafka.logs[self.tokens]))
        marks = ChainMarks(name, 0, raw, tokens, mark or store_mark(store, name, 0))
        ignored = self.settled.control.ignored
        chain = ChainTask(self.genesis, self.tokens.topic, marks, ignored, since, ends)
        sample = ReferenceSample(1, everything=True)
        task = PartitionTask(self.settings, None, frozenset(), [chain], store, sample)
        (result,) = await check_partition(task, lambda _: self.plan.stages, lambda _: None)
        return result


def write_store(path: Path, genesis: Genesis, messages: Sequence[Message]) -> Path:
    """Write messages of partition 0 of a stream to a store; return where that is."""
    store, info = Store.open_or_create(path), StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    store.add_stream(info, b"{}")
    acceptor = Acceptor(info.fingerprint, 0, info.block_bytes)
    with PartitionWriter.open(store, info.name, 0) as writer:
        for message in messages:
            verdict = acceptor.offer(message)
            if isinstance(verdict, Taken) and verdict.blocks.entries:
                writer.append(verdict.blocks, token_offset=0)
        writer.commit()
    return store.path


def miscounted(message: Message) -> Message:
    """Return the message with a tombstone too many in its account."""
    totals = message.totals.copy()
    totals.tombstones += 1
    return replace(message, totals=totals)


def joined(messages: Sequence[Message]) -> Message:
    """Return one message of the blocks of some that follow each other."""
    return replace(
        messages[-1],
        first=messages[0].first,
        before=messages[0].before,
        tokens=b"".join(bytes(message.tokens) for message in messages),
        entries=[entry for message in messages for entry in message.entries],
        chains=[chain for message in messages for chain in message.chains],
    )


def installed(kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
    """Let every consumer of a verification be one of these brokers'."""
    for module in ("era_check", "partition_check", "verification", "verify_bounds"):
        monkeypatch.setattr(f"tokenmill.app.tools.verify.{module}.consumer", kafka.consumer)
    return kafka
