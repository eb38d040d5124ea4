"""Streams that are milled here, without workers: what a verification looks at, on a broker or on one in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from tests.app.segments.mirror.memory_kafka import MemoryKafka, MemoryStream
from tests.conftest import TopicFactory
from tests.service import Raw, in_own_loop, raw_records, send, service_settings
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.control_topic import settle, settled_stream
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import RawTopicPlan, plan_topic
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify.partition_check import ChainTask, PartitionTask, check_partition
from tokenmill.app.tools.verify.sides import ReferenceSample
from tokenmill.app.tools.verify.verify_bounds import ChainMarks, StoreMark, VerifiedChain, store_mark
from tokenmill.app.tools.verify.verify_result import ChainResult
from tokenmill.documents import Record
from tokenmill.reading import Acceptor, Taken, genesis_point
from tokenmill.recipe import Genesis, Recipe
from tokenmill.store import PartitionWriter, Store, StreamInfo
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

SPLITS: Mapping[str, int] = {"train": 500, "validation": 500}
RAW_TEXTS = [f"text number {number} of the topic".encode() for number in range(60)]


class Published(NamedTuple):
    """All streams of one raw topic of one partition, under one suffix."""

    settings: Settings
    plan: RawTopicPlan

    @property
    def names(self) -> list[str]:
        return [stream.name for stream in self.plan.recipes]

    def messages(self, name: str, message_bytes: int) -> list[Message]:
        """Mill the raw topic anew; return a stream's messages, of so many bytes at most, and its carry."""
        (records,) = raw_records(self.settings, self.settings.raw_topics[0])
        (recipe,) = (recipe for stream, recipe in self.plan.recipes.items() if stream.name == name)
        return milled(self.plan, new_chain(recipe, message_bytes=message_bytes), records)

    def publish(self, name: str, messages: Sequence[Message]) -> None:
        records = [Raw(bytes(m.tokens), 0, None, [(HEADER_NAME, encode_header(m))]) for m in messages]
        send(self.settings, records, f"tokens.{name}")

    def store(self, messages: Mapping[str, Sequence[Message]]) -> Path:
        for name, sent in messages.items():
            write_store(self.settings.store, in_own_loop(partial(settled_stream, self.settings, name)).genesis, sent)
        return self.settings.store


def new_chain(recipe: Recipe, *, message_bytes: int) -> ChainMill:
    point = genesis_point(0, genesis_hash(recipe.fingerprint, 0))
    return ChainMill(recipe, point, message_bytes=message_bytes)


def milled(plan: RawTopicPlan, chain: ChainMill, records: Sequence[Record]) -> list[Message]:
    """Return the messages of records, and the carry behind them."""
    found = PartitionMill(plan.stages, [chain]).feed(records).messages[chain.recipe.split]
    carry = chain.carry(chain.next_offset)
    assert carry is not None
    return [*found, carry]


def settled(broker: Broker, topic: TopicFactory, directory: Path, suffix: str = "", raw: str = "") -> Published:
    """Settle the streams of a raw topic, a new one with `RAW_TEXTS` unless it is given."""
    settings = service_settings(broker, raw or topic(), directory, splits=SPLITS)
    settings = settings.model_copy(update={"stream_suffix": suffix})
    in_own_loop(lambda: ensure_topics(settings))
    if not raw:
        send(settings, [Raw(text) for text in RAW_TEXTS])
    return Published(settings, settle_streams(settings))


def settle_streams(settings: Settings) -> RawTopicPlan:
    plan = plan_topic(settings, settings.raw_topics[0])
    for stream, recipe in plan.recipes.items():
        in_own_loop(partial(settle, settings, stream, recipe, plan.tokenizer.content, plan.lists))
    return plan


def delete_before(settings: Settings, partition: TopicPartition, offset: int) -> None:
    async def run() -> None:
        async with admin(settings) as client:
            await client.delete_records({partition: RecordsToDelete(offset)})

    in_own_loop(run)


TEXTS = [f"text {number:02} of all".encode() for number in range(12)]
"""Of 14 tokens and an end each: 45 blocks of 4 tokens."""


class OneChain(MemoryStream):
    """One chain: its raw topic, its token topic, and what may be milled of it."""

    def __init__(self, kafka: MemoryKafka, settings: Settings, texts: Sequence[bytes]) -> None:
        super().__init__(kafka, settings, [0])
        self.raw, self.tokens = TopicPartition(self.stream.raw_topic, 0), TopicPartition(self.stream.tokens_topic, 0)
        for text in texts:
            kafka.append(self.raw.topic, self.raw.partition, text)

    def milled(self, blocks: int = 2, records: slice = slice(None)) -> list[Message]:
        """Return the messages of some records, of so many blocks each, and the carry behind them."""
        chain = new_chain(self.recipe, message_bytes=1)
        *single, carry = milled(self.plan, chain, self.kafka.logs[self.raw][records])
        return [*(joined(single[first : first + blocks]) for first in range(0, len(single), blocks)), carry]

    def carry_after(self, records: int) -> Message:
        carry = self.milled(records=slice(records))[-1]
        assert carry.is_carry
        return carry

    def publish(self, messages: Sequence[Message]) -> None:
        self.kafka.send(self.tokens.topic, 0, messages)

    def store(self, messages: Sequence[Message]) -> Path:
        return write_store(self.settings.store, self.settled.genesis, messages)

    def filled(self, blocks: int) -> Path:
        """Publish and store the messages of all records, of so many blocks each; return where the store is."""
        self.publish(self.milled(blocks))
        return self.store(self.milled(blocks))

    def task(
        self,
        mark: StoreMark | None = None,
        *,
        raw: tuple[int, int] | None = None,
        tokens: tuple[int, int] | None = None,
        since: VerifiedChain | None = None,
        ends: Path | None = None,
    ) -> ChainTask:
        """Return the chain up to what is there now, unless a mark says otherwise."""
        raw = raw or (0, len(self.kafka.logs[self.raw]))
        tokens = tokens or (0, len(self.kafka.logs[self.tokens]))
        marks = ChainMarks(self.name, 0, raw, tokens, mark)
        return ChainTask(self.settled.genesis, self.tokens.topic, marks, self.settled.control.ignored, since, ends)

    async def check(self, store: Path | None = None, *, mark: StoreMark | None = None, **bounds: Any) -> ChainResult:
        """Verify such a `task`; every record is sampled."""
        chain = self.task(mark or store_mark(store, self.name, 0), **bounds)
        sample = ReferenceSample(1, everything=True)
        task = PartitionTask(self.settings, None, frozenset(), [chain], store, sample)
        (result,) = await check_partition(task, lambda _: self.plan.stages, lambda _: None)
        return result


def write_store(path: Path, genesis: Genesis, messages: Sequence[Message]) -> Path:
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
    totals = message.totals.copy()
    totals.tombstones += 1
    return replace(message, totals=totals)


def joined(messages: Sequence[Message]) -> Message:
    return replace(
        messages[-1],
        first=messages[0].first,
        before=messages[0].before,
        tokens=b"".join(bytes(message.tokens) for message in messages),
        entries=[entry for message in messages for entry in message.entries],
        chains=[chain for message in messages for chain in message.chains],
    )


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
    """Return brokers in memory, which every consumer of a verification speaks to."""
    kafka = MemoryKafka()
    for module in ("era_check", "partition_check", "verification", "verify_bounds"):
        monkeypatch.setattr(f"tokenmill.app.tools.verify.{module}.consumer", kafka.consumer)
    return kafka


@pytest.fixture
def published(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Published:
    return settled(broker, topic, tmp_path)


def tiny_settings(directory: Path, **others: Any) -> Settings:
    """Return settings of one stream, with blocks of 4 tokens and segments of 4 blocks."""
    tiny: dict[str, Any] = {"tokenizer": "bytes", "sequence_length": 3, "segment_blocks": 4, "splits": {"all": 1000}}
    return Settings(**tiny | {"store": directory / "store"} | others)


@pytest.fixture
def stream(kafka: MemoryKafka, tmp_path: Path) -> OneChain:
    return OneChain(kafka, tiny_settings(tmp_path), TEXTS)
