"""Brokers in memory for mirrors: topics as lists, leaders that a test moves, and what reads them as aiokafka does.

What mirrors, partitions and eras do with it is the real code; a test of seconds on a broker takes milliseconds here.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from tests.mills import text
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.mill.recipes import RawTopicPlan, plan_topic
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.settings import Settings
from tokenmill.eras import ERA_KEY, EraLog, close_era
from tokenmill.reading import Extent, genesis_point
from tokenmill.recipe import GENESIS_KEY, Genesis, Recipe
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import HEADER_NAME, Message, encode_header


class MemoryKafka:
    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[Any]] = {}
        self.leaders: dict[TopicPartition, int] = {}
        """Of partitions, the broker that leads them, where it is not 0."""
        self.clients: list[MemoryClient] = []

    def append(self, topic: str, partition: int, value: bytes | None, **parts: Any) -> None:
        size = len(value) if value is not None else -1
        log = self.logs.setdefault(TopicPartition(topic, partition), [])
        headers = tuple(parts.get("headers", ()))
        log.append(ConsumerRecord(topic, partition, len(log), 0, 0, parts.get("key"), value, None, -1, size, headers))

    def send(self, topic: str, partition: int, messages: Iterable[Message]) -> None:
        for message in messages:
            self.append(topic, partition, bytes(message.tokens), headers=[(HEADER_NAME, encode_header(message))])

    @asynccontextmanager
    async def consumer(self, _settings: Settings, **_options: Any) -> AsyncIterator["MemoryClient"]:
        client = MemoryClient(self)
        self.clients.append(client)
        try:
            yield client
        finally:
            self.clients.remove(client)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all that opens a consumer by itself get one of these."""
        for module in ("segments.mirror", "segments.token_partition", "kafka.clients"):
            monkeypatch.setattr(f"tokenmill.app.{module}.consumer", self.consumer)


class MemoryClient:
    """What of `AIOKafkaConsumer` is used without a group, and of the client in it."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self.places: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.told: list[tuple[str, TopicPartition]] = []
        """Seeks, pauses and resumes, in their order."""
        self._client = self
        self._conns: dict[str, Any] = {"0": SimpleNamespace(connected=lambda: True)}
        self.cluster = self

    # of the client inside

    async def force_metadata_update(self) -> None:
        """Know it already."""

    async def fetch_all_metadata(self) -> "MemoryClient":
        return self

    def brokers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(nodeId=0)]

    async def send(self, _: int, __: object) -> SimpleNamespace:
        return SimpleNamespace(topics=[(0, name, False, self.partitions_for_topic(name)) for name in self.topics()])

    def topics(self) -> set[str]:
        return {tp.topic for tp in self._kafka.logs}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {tp.partition for tp in self._kafka.logs if tp.topic == topic}

    def leader_for_partition(self, tp: TopicPartition) -> int:
        return self._kafka.leaders.get(tp, 0)

    # of the consumer

    def assign(self, tps: Sequence[TopicPartition]) -> None:
        self.places = dict.fromkeys(tps, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self.places)

    def pause(self, *tps: TopicPartition) -> None:
        self.paused |= set(tps)
        self.told += [("pause", tp) for tp in tps]

    def resume(self, *tps: TopicPartition) -> None:
        self.paused -= set(tps)
        self.told += [("resume", tp) for tp in tps]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.places[tp] = offset
        self.told.append(("seek", tp))

    async def position(self, tp: TopicPartition) -> int:
        return self.places[tp]

    def highwater(self, tp: TopicPartition) -> int | None:
        return len(self._kafka.logs[tp]) if tp in self._kafka.logs else None

    async def beginning_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: len(self._kafka.logs.get(tp, ())) for tp in tps}

    async def getmany(self, tp: TopicPartition, *, timeout_ms: int) -> dict[TopicPartition, list[Any]]:  # noqa: ARG002
        """Return a partition's next records, two at most, so that there are several fetches."""
        await asyncio.sleep(0.001)
        if tp in self.paused:
            return {}
        records = self._kafka.logs.get(tp, [])[self.places[tp] :][:2]
        self.places[tp] += len(records)
        return {tp: records} if records else {}


def mill_blocks(plan: RawTopicPlan, recipe: Recipe, partition: int, count: int) -> list[Message]:
    """Return the first blocks of a chain, each in a message of its own."""
    start = genesis_point(partition, genesis_hash(recipe.fingerprint, partition))
    records = [text(n, "x" * recipe.block_tokens) for n in range(count + 1)]
    milled = PartitionMill(plan.stages, [ChainMill(recipe, start, message_bytes=1)]).feed(records)
    blocks = list(milled.messages[recipe.split])[:count]
    assert len(blocks) == count
    return blocks


class MemoryStream:
    """A settled stream with blocks and eras in memory; each message is one block."""

    def __init__(self, kafka: MemoryKafka, settings: Settings, blocks: Sequence[int]) -> None:
        """Mill so many blocks for each partition; write the genesis, and none of them yet."""
        (stream,) = settings.streams()
        plan = plan_topic(settings, stream.raw_topic)
        recipe = plan.recipes[stream]
        genesis = Genesis(stream.name, recipe, (0,) * len(blocks), settings.segment_blocks)
        self.kafka, self.settings, self.stream, self.plan, self.recipe = kafka, settings, stream, plan, recipe
        self.name, self.control = stream.name, TopicPartition(stream.control_topic, 0)
        self.settled = Settled(stream, genesis, ControlLog(stream.name, genesis))
        kafka.append(stream.control_topic, 0, genesis.pack(), key=GENESIS_KEY)
        self._eras = EraLog(recipe.fingerprint)
        self._sent = [0] * len(blocks)
        self.messages: list[list[Message]] = []
        for partition, count in enumerate(blocks):
            kafka.logs[TopicPartition(stream.tokens_topic, partition)] = []
            self.messages.append(mill_blocks(plan, recipe, partition, count))

    def send(self, partition: int, stop: int, first: int | None = None) -> None:
        """Write blocks up to ``stop``, from where the last call ended unless ``first`` says otherwise."""
        first = self._sent[partition] if first is None else first
        self.kafka.send(self.stream.tokens_topic, partition, self.messages[partition][first:stop])
        self._sent[partition] = stop

    def close_era(self, *, end: bool = False) -> None:
        extents = {n: Extent(stop, self.messages[n][stop - 1].after) for n, stop in enumerate(self._sent) if stop}
        era = close_era(self._eras, extents, now=1, era_blocks=1, overdue=True, end=end)
        assert era is not None
        assert self._eras.add(era.pack()) == era
        self.kafka.append(self.stream.control_topic, 0, era.pack(), key=ERA_KEY)
