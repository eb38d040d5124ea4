"""One token partition on a segment worker: when its blocks are durable, and when its directory is free again."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.admin import RecordsToDelete

from tests.app.conftest import until
from tests.app.segments.mirror.memory_kafka import mill_blocks
from tests.conftest import TopicFactory
from tests.service import Raw, send, service_settings
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.control_log import ControlLog, ignore_record, record_hash
from tokenmill.app.kafka.control_topic import Settled, settle
from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import RawTopicPlan, plan_topic
from tokenmill.app.segments import following
from tokenmill.app.segments import token_partition as module
from tokenmill.app.segments.mirror import StreamFlow
from tokenmill.app.segments.token_partition import SegmentContext, TokenPartition
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.app.tools.repair import repair_store
from tokenmill.errors import DifferenceError, GapError, StrayError
from tokenmill.recipe import Genesis
from tokenmill.store import PartitionWriter, Store, StreamInfo, open_partition
from tokenmill.store.sealing import scan
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

EPOCH = 7
BLOCKS = 8
"""Each in a message of its own; fewer than fill a segment."""
FOR_EVER = 1000.0


class Appending:
    """A partition on an empty store, and what comes on its topic."""

    def __init__(self, settings: Settings, plan: RawTopicPlan, settled: Settled) -> None:
        stream, recipe = settled.stream, settled.genesis.recipe
        self.settings, self.settled = settings, settled
        self.store = Store.open_or_create(settings.store)
        self.store.add_stream(StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks), None)
        self.messages = mill_blocks(plan, recipe, 0, BLOCKS)
        self.starts: list[int] = []
        """Offsets from which it was let flow."""
        self.durable: list[int] = []
        """What the partition said to be durable."""
        self.failed: list[Exception] = []
        self.end_offset = 0
        """Where the topic ends, as it is known."""
        context = SegmentContext(
            settings=settings, store=self.store, stream=stream.name, recipe=recipe, fail=self.failed.append,
            ignored=settled.control.ignored, start_partition=self._start, end_offset=lambda _tp: self.end_offset,
            set_durable=lambda _tp, offset: self.durable.append(offset),
        )  # fmt: skip
        self.partition = TokenPartition(TopicPartition(stream.tokens_topic, 0), context)

    async def _start(self, _tp: TopicPartition, offset: int) -> int:
        self.starts.append(offset)
        return EPOCH

    @classmethod
    async def begin(cls, settings: Settings) -> Self:
        plan = plan_topic(settings, settings.raw_topics[0])
        ((stream, recipe),) = plan.recipes.items()
        made = cls(settings, plan, await settle(settings, stream, recipe, plan.tokenizer.content))
        await made.partition.resume()
        return made

    @classmethod
    def without_broker(cls, directory: Path) -> Self:
        settings = Settings(
            raw_topics=("raw",), tokenizer="bytes", sequence_length=63, message_bytes=64, store=directory / "store",
            splits={"train": 1000}, segment_blocks=16,
        )  # fmt: skip
        plan = plan_topic(settings, "raw")
        ((stream, recipe),) = plan.recipes.items()
        return cls(settings, plan, Settled(stream, Genesis(stream.name, recipe, (0,), 16), ControlLog()))

    async def feed(self, low: int, high: int) -> None:
        await self.bring_blocks(*range(low, high))

    async def bring(self, records: Sequence[Any], position: int) -> None:
        await self.partition.feed(FetchedBatch(self.partition.tp, records, position, EPOCH))

    async def bring_blocks(self, *numbers: int, position: int | None = None) -> None:
        records = [_record(number, self.messages[number]) for number in numbers]
        await self.bring(records, numbers[-1] + 1 if position is None else position)

    async def publish(self, low: int, high: int) -> None:
        raws = [Raw(bytes(m.tokens), 0, None, [(HEADER_NAME, encode_header(m))]) for m in self.messages[low:high]]
        await asyncio.to_thread(send, self.settings, raws, self.partition.tp.topic)

    async def end(self) -> None:
        self.partition.stop()
        await self.partition.closed()

    @property
    def stored(self) -> int:
        return open_partition(self.settings.store, self.settled.stream.name, 0).blocks

    @property
    def commits(self) -> list[int]:
        (log,) = self.settings.store.glob("*/0/*.commits")
        recipe = self.settled.genesis.recipe
        found = scan(log.read_bytes(), block_bytes=recipe.block_bytes, segment_blocks=self.settings.segment_blocks)
        return [commit.blocks for commit in found.commits]

    def reopened(self) -> tuple[int, int]:
        """Return the next block and what is cut off for whoever opens the directory now, which must be free."""
        with PartitionWriter.open(self.store, self.settled.stream.name, 0) as writer:
            return writer.next_block, writer.truncated_bytes


def _record(offset: int, message: Message) -> ConsumerRecord[Any, Any]:
    headers = ((HEADER_NAME, encode_header(message)),)
    return ConsumerRecord("tokens", 0, offset, 0, 0, None, bytes(message.tokens), None, -1, 0, headers)


@pytest.fixture
async def appending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Appending]:
    made = Appending.without_broker(tmp_path)

    async def offsets(_client: object, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, made.end_offset))

    monkeypatch.setattr(module, "consumer", lambda _settings: nullcontext())
    for reader in (module, following):
        monkeypatch.setattr(reader, "offsets", offsets)
        monkeypatch.setattr(reader, "message_at", AsyncMock(return_value=None))
    await made.partition.resume()
    yield made
    await made.end()


async def test_blocks_that_come_quickly_share_a_commit(appending: Appending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", FOR_EVER)
    await appending.feed(0, 2)
    assert (appending.stored, appending.durable) == (2, [2])
    await appending.feed(2, 3)
    await appending.feed(3, 6)
    assert (appending.stored, appending.durable) == (2, [2])
    assert appending.partition.status()["block"] == 2
    await appending.end()
    await appending.feed(6, 7)
    assert (appending.commits, appending.durable) == ([2, 6], [2, 6])


async def test_last_blocks_are_committed_without_more_coming(
    appending: Appending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.5)
    await appending.feed(0, 1)
    await appending.feed(1, 4)
    await until(lambda: appending.durable[-1] == 4)
    assert (appending.commits, appending.stored) == ([1, 4], 4)


async def test_halt_commits_what_came_before_it_and_lets_go_of_the_directory(
    appending: Appending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", FOR_EVER)
    await appending.feed(0, 1)
    appending.messages[3] = replace(appending.messages[3], before=bytes(16))
    await appending.feed(1, BLOCKS)
    await appending.partition.closed()
    assert appending.partition.halted
    assert (appending.partition.status()["block"], appending.stored, appending.commits) == (3, 3, [1, 3])
    assert appending.reopened() == (3, 0)


async def test_empty_store_waits_for_a_segments_first_block(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token topic no longer holds block 0: an empty store begins with the next segment, once that comes."""
    monkeypatch.setattr(following, "GAP_SECONDS", 0.01)
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000}, segment_blocks=4)
    appending = await Appending.begin(settings)
    await appending.publish(0, 3)
    async with admin(settings) as client:
        await client.delete_records({TopicPartition(appending.partition.tp.topic, 0): RecordsToDelete(1)})
    await appending.feed(1, 3)
    assert not appending.partition.halted
    assert appending.stored == 0
    await appending.publish(3, 7)
    await appending.feed(1, 3)  # looks again, and begins with block 4
    await appending.feed(3, 7)
    await appending.end()
    reader = open_partition(settings.store, appending.settled.stream.name, 0, check=True)
    assert (reader.first_block, reader.blocks) == (4, 7)
    assert [reader.read(n).tobytes() for n in (4, 5, 6)] == [bytes(m.tokens) for m in appending.messages[4:7]]
    assert reader.chain_before(4) == appending.messages[4].before


async def test_cancelled_commit_ends_before_the_directory_is_free(
    appending: Appending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that stops in the middle of a slow sync: nobody else writes before it is through, and all counts."""
    syncing = threading.Event()
    synced: list[int] = []
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        syncing.set()
        time.sleep(0.3)
        sync(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    feeding = asyncio.create_task(appending.feed(0, 5))
    await asyncio.to_thread(syncing.wait)
    feeding.cancel()
    await asyncio.sleep(0)
    feeding.cancel()
    assert not synced
    await appending.end()
    assert feeding.cancelled()
    assert appending.commits == [5]
    assert len(synced) == 3  # one commit: data, document table, record
    assert appending.reopened() == (5, 0)


async def test_partition_waits_for_its_disk(appending: Appending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "DISK_SECONDS", 0.01)
    await appending.feed(0, 2)
    await appending.end()
    store = appending.settings.store
    store.rename(store.with_name("away"))
    heir = TokenPartition(appending.partition.tp, appending.partition._context)
    resuming = asyncio.create_task(heir.resume())
    await until(lambda: heir.waiting)
    assert "no longer holds the store" in str(heir.waiting)
    assert heir.progress().state == "waiting"
    assert not store.exists()
    store.with_name("away").rename(store)
    await resuming
    assert heir.status() == {"block": 2, **dict.fromkeys(("halted", "halted_by", "waiting", "waiting_by", "still"))}
    heir.stop()


async def test_a_halted_partition_goes_on_after_a_repair_beside_it(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000}, segment_blocks=4)
    appending = await Appending.begin(settings)
    await appending.publish(0, BLOCKS)
    await appending.feed(0, 6)
    await appending.end()
    stream, partition = appending.settled.stream.name, appending.partition
    index = settings.store / stream / "0" / f"{0:012d}.index"
    right = index.read_bytes()
    index.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    manifest = index.with_suffix(".json")
    manifest.write_bytes(b"x" + manifest.read_bytes())
    index.with_name(f"{4:012d}.commits").unlink()

    heir = TokenPartition(partition.tp, partition._context)
    await heir.resume()
    assert "tokenmill repair" in (heir.halted or "")
    await heir.closed()
    assert not heir.may_go_on()
    repairs, _ = await asyncio.to_thread(repair_store, settings, stream)
    assert not any(segment.lost for segment in repairs[0].segments)
    assert heir.may_go_on()
    await heir.resume()
    assert (heir.halted, heir.progress().state, heir.status()["block"]) == (None, "running", 6)
    await heir.feed(FetchedBatch(heir.tp, [_record(n, m) for n, m in enumerate(appending.messages)], BLOCKS, EPOCH))
    heir.stop()
    await heir.closed()
    assert open_partition(settings.store, stream, 0, check=True).blocks == BLOCKS


async def test_a_partition_goes_on_once_a_message_is_ignored(appending: Appending) -> None:
    foreign: Any = ConsumerRecord("tokens", 0, 2, 0, 0, None, b"a text", None, -1, 0, ())
    records = [_record(n, m) for n, m in enumerate(appending.messages[:2])]
    records += [foreign, *(_record(n, m) for n, m in enumerate(appending.messages[2:], 3))]
    partition, control = appending.partition, appending.settled.control
    await appending.bring(records, BLOCKS + 1)
    assert f"`tokenmill ignore {partition.tp.topic} 0 2`" in (partition.halted or "")
    assert partition.progress().state == "halted"
    assert partition.status()["halted_by"] in {StrayError.brief, DifferenceError.brief, GapError.brief}
    assert not partition.may_go_on()
    control.add(*ignore_record(1, 2, record_hash(foreign)))
    assert not partition.may_go_on()
    control.add(*ignore_record(0, 2, record_hash(foreign)))
    assert partition.may_go_on()
    before = metrics.IGNORED._value.get()
    await partition.resume()
    assert not partition.may_go_on()
    await appending.bring(records, BLOCKS + 1)
    assert metrics.IGNORED._value.get() == before + 1
    assert partition.status()["halted"] is None
    await appending.end()
    assert appending.stored == BLOCKS
    assert not partition.may_go_on()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the waits of partitions between looks, each of which is over at once."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds >= following.GAP_SECONDS:  # no wait between commits
            found.append(seconds)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return found


async def test_the_wait_between_vain_looks_grows_up_to_a_minute(appending: Appending, slept: list[float]) -> None:
    appending.end_offset = 3
    for _ in range(8):
        await appending.bring_blocks(2)
    assert slept == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert appending.starts == [0] * 9
    assert appending.partition.progress().state == "waiting"
    assert "block 0" in str(appending.partition.waiting)
    vain = appending.partition.vain_looks
    await appending.bring_blocks(2, 0, position=3)  # the missing one comes above what follows it
    assert (appending.partition.vain_looks, slept[8:]) == (0, [])
    assert vain == 7  # the first one began where the search had led, not at the partition's first offset
    await appending.bring_blocks(1, 2)
    assert (appending.partition.waiting, appending.partition.progress().state) == (None, "running")
    appending.end_offset = 6
    await appending.bring_blocks(5)
    assert slept[8:] == [2.0]


async def test_a_gap_is_looked_for_only_when_all_was_read(appending: Appending, slept: list[float]) -> None:
    """The missing block may come above what follows it."""
    appending.end_offset = 6
    await appending.bring_blocks(2)
    await appending.bring_blocks(4, position=5)
    assert (slept, appending.starts) == ([], [0])
    await appending.bring_blocks(0, 1, position=5)
    assert appending.starts == [0]
    await appending.bring_blocks(5, position=6)
    assert (slept, appending.starts) == ([], [0, 0])  # it found some, so it looks again at once


async def test_a_commit_that_fails_later_is_not_swallowed(
    appending: Appending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody awaits it; whoever runs the partition is told, and nothing more is said to be durable."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.01)
    await appending.bring_blocks(0)
    assert appending.durable == [1]
    assert appending.partition._appender is not None
    writer = appending.partition._appender.writer
    error = RuntimeError("a bug")
    monkeypatch.setattr(writer, "commit", Mock(side_effect=error))
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.05)
    await appending.bring_blocks(1)
    await until(lambda: appending.failed)
    assert appending.failed == [error]
    await appending.bring_blocks(2)
    assert appending.durable == [1]
    assert appending.partition.status()["block"] == 1


def test_a_partition_that_has_not_started_has_reached_nothing(tmp_path: Path) -> None:
    """A mirror that is to end at the head must not end because it does not follow one yet."""
    appending = Appending.without_broker(tmp_path)
    flow = StreamFlow(appending.settings, appending.store, appending.settled, [0])
    (tp,) = flow.topics
    assert not flow.has_reached(tp, 0)
    flow.partitions[tp] = appending.partition
    assert not flow.has_reached(tp, 0)
    flow.reached[tp] = 3
    assert flow.has_reached(tp, 3)
    assert not flow.has_reached(tp, 4)
    appending.partition.waiting = GapError("for something")
    assert not flow.has_reached(tp, 3)
    appending.partition._gaps.vain_looks = 1
    assert flow.has_reached(tp, 4)
