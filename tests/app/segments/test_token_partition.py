"""One token partition on a segment worker: when its blocks are durable, and when its directory is free again."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.admin import RecordsToDelete
from faust.types import TP

from tests.conftest import TopicFactory
from tests.mills import text
from tests.service import Raw, send, service_settings
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.control_log import ControlLog, ignore_record, record_hash
from tokenmill.app.kafka.control_topic import Settled, settle
from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import RawTopicPlan, plan_topic
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.segments import following
from tokenmill.app.segments import token_partition as module
from tokenmill.app.segments.mirror import StreamFlow
from tokenmill.app.segments.token_partition import SegmentContext, TokenPartition
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.app.tools.repair import repair_store
from tokenmill.app.worker.ending import end_for
from tokenmill.errors import DifferenceError, GapError, StrayError
from tokenmill.reading import genesis_point
from tokenmill.recipe import Genesis, Recipe
from tokenmill.store import PartitionWriter, Store, StreamInfo, open_partition
from tokenmill.store.sealing import scan
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

EPOCH = 7
BLOCKS = 8
"""Each in a message of its own; fewer than fill a segment."""
FOR_EVER = 1000.0


@dataclass
class Appending:
    """A partition that has resumed on an empty store, and what comes on its topic."""

    settings: Settings
    settled: Settled
    partition: TokenPartition
    messages: list[Message]
    durable: list[int]
    """What the partition said to be durable."""

    @classmethod
    async def begin(cls, settings: Settings) -> Self:
        """Settle the stream, mill some documents, and let the partition resume."""
        plan = plan_topic(settings, settings.raw_topics[0])
        ((stream, recipe),) = plan.recipes.items()
        settled = await settle(settings, stream, recipe, plan.tokenizer.content)
        store = Store.open_or_create(settings.store)
        store.add_stream(StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks), None)
        messages = _milled(plan, recipe)
        durable: list[int] = []

        async def start_partition(_tp: TP, _offset: int) -> int:
            return EPOCH

        context = SegmentContext(
            settings=settings,
            store=store,
            stream=stream.name,
            recipe=recipe,
            ignored=settled.control.ignored,
            start_partition=start_partition,
            set_durable=lambda _tp, offset: durable.append(offset),
            end_offset=lambda _tp: 0,
            fail=end_for,
        )
        partition = TokenPartition(TP(stream.tokens_topic, 0), context)
        await partition.resume()
        return cls(settings, settled, partition, messages, durable)

    async def feed(self, low: int, high: int, messages: Sequence[Message] | None = None) -> None:
        """Bring messages ``[low, high)``, in one fetch."""
        records: list[Any] = [
            _record(offset, message) for offset, message in enumerate((messages or self.messages)[low:high], low)
        ]
        await self.partition.feed(FetchedBatch(self.partition.tp, records, high, EPOCH))

    async def publish(self, low: int, high: int) -> None:
        """Put messages ``[low, high)`` on the token topic."""
        raws = [Raw(bytes(m.tokens), 0, None, [(HEADER_NAME, encode_header(m))]) for m in self.messages[low:high]]
        await asyncio.to_thread(send, self.settings, raws, self.partition.tp.topic)

    async def end(self) -> None:
        """Stop the partition, and wait until it has let go of its directory."""
        self.partition.stop()
        if self.partition._closing is not None:
            await self.partition._closing

    @property
    def stored(self) -> int:
        """How many blocks a reader of the store sees."""
        return open_partition(self.settings.store, self.settled.stream.name, 0).blocks

    @property
    def commits(self) -> list[int]:
        """The number of blocks after each commit."""
        (log,) = self.settings.store.glob("*/0/*.commits")
        recipe = self.settled.genesis.recipe
        found = scan(log.read_bytes(), block_bytes=recipe.block_bytes, segment_blocks=self.settings.segment_blocks)
        return [commit.blocks for commit in found.commits]


def _milled(plan: RawTopicPlan, recipe: Recipe) -> list[Message]:
    chain = ChainMill(recipe, genesis_point(0, genesis_hash(recipe.fingerprint, 0)), message_bytes=1)
    records = [text(n, "x" * recipe.block_tokens) for n in range(BLOCKS)]
    return list(PartitionMill(plan.stages, [chain]).feed(records).messages[recipe.split])[:BLOCKS]


def _record(offset: int, message: Message) -> ConsumerRecord[Any, Any]:
    headers = ((HEADER_NAME, encode_header(message)),)
    return ConsumerRecord("tokens", 0, offset, 0, 0, None, bytes(message.tokens), None, -1, 0, headers)


@pytest.fixture
async def appending(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Appending:
    """Return a partition that has resumed."""
    return await Appending.begin(service_settings(broker, topic(), tmp_path, splits={"train": 1000}))


async def test_blocks_that_come_quickly_share_a_commit(appending: Appending, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is committed at once; those of the next fetches wait for each other, and are not lost at the end."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", FOR_EVER)
    await appending.feed(0, 2)
    assert (appending.stored, appending.durable) == (2, [2])
    await appending.feed(2, 3)
    await appending.feed(3, 6)
    assert (appending.stored, appending.durable) == (2, [2])
    assert appending.partition.status()["block"] == 2
    await appending.end()
    assert (appending.commits, appending.durable) == ([2, 6], [2, 6])


async def test_last_blocks_are_committed_without_more_coming(
    appending: Appending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, by themselves."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.5)
    await appending.feed(0, 1)
    await appending.feed(1, 4)
    deadline = time.monotonic() + 30.0
    while appending.durable[-1] < 4 and time.monotonic() < deadline:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    assert (appending.commits, appending.stored, appending.durable[-1]) == ([1, 4], 4, 4)
    await appending.end()


async def test_halt_commits_what_came_before_it(appending: Appending, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that were right are in the store, the message that is of another history is not."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", FOR_EVER)
    await appending.feed(0, 1)
    messages = [*appending.messages]
    messages[3] = replace(messages[3], before=bytes(16))
    await appending.feed(1, BLOCKS, messages)
    assert appending.partition.halted
    assert appending.stored == 3
    await appending.end()
    assert appending.commits == [1, 3]


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
    store, stream = Store.open_or_create(appending.settings.store), appending.settled.stream.name
    with PartitionWriter.open(store, stream, 0) as writer:
        assert (writer.next_block, writer.truncated_bytes) == (5, 0)


async def test_partition_waits_for_its_disk(appending: Appending, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is not there says what is waited for, and no process has to end; with it back, it goes on."""
    monkeypatch.setattr(following, "DISK_SECONDS", 0.01)
    await appending.feed(0, 2)
    await appending.end()
    store = appending.settings.store
    store.rename(store.with_name("away"))
    heir = TokenPartition(appending.partition.tp, appending.partition._context)
    resuming = asyncio.create_task(heir.resume())
    async with asyncio.timeout(30):
        while heir.waiting is None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert "no longer holds the store" in str(heir.waiting)
    assert heir.progress().state == "waiting"
    assert not store.exists()
    store.with_name("away").rename(store)
    async with asyncio.timeout(30):
        await resuming
    assert heir.status() == {"block": 2, **dict.fromkeys(("halted", "halted_by", "waiting", "waiting_by", "still"))}
    heir.stop()


async def test_a_halted_partition_goes_on_after_a_repair_beside_it(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """It lets the repair have its directory, sees that something came into it, and resumes as if for the first time."""
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


async def test_a_partition_that_halts_in_the_middle_lets_go_of_its_directory(appending: Appending) -> None:
    """So that whoever is to mend it can lock it; what was right before is committed."""
    messages = [*appending.messages]
    messages[2] = replace(messages[2], before=bytes(16))
    await appending.feed(0, BLOCKS, messages)
    await appending.partition.closed()
    assert appending.partition.status()["block"] == 2
    store, stream = Store.open_or_create(appending.settings.store), appending.settled.stream.name
    with PartitionWriter.open(store, stream, 0) as writer:
        assert writer.next_block == 2
    await appending.end()


async def test_a_partition_goes_on_once_a_message_is_ignored(appending: Appending) -> None:
    """Of the ignore list it hears by the way; what it passes over is counted, and changes nothing."""
    foreign: Any = ConsumerRecord("tokens", 0, 2, 0, 0, None, b"a text", None, -1, 0, ())
    await appending.publish(0, BLOCKS)
    records = [_record(n, m) for n, m in enumerate(appending.messages[:2])]
    records += [foreign, *(_record(n, m) for n, m in enumerate(appending.messages[2:], 3))]
    partition, control = appending.partition, appending.settled.control
    await partition.feed(FetchedBatch(partition.tp, records, BLOCKS + 1, EPOCH))
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
    await partition.feed(FetchedBatch(partition.tp, records, BLOCKS + 1, EPOCH))
    assert metrics.IGNORED._value.get() == before + 1
    assert partition.status()["halted"] is None
    await appending.end()
    assert appending.stored == BLOCKS
    assert not partition.may_go_on()


class Sleepless:
    """Stands for `asyncio`, but for its sleep, which is noted and over at once."""

    def __init__(self) -> None:
        """Sleep never."""
        self.slept: list[float] = []

    def __getattr__(self, name: str) -> Any:
        """Be `asyncio`."""
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        """Note it, but for the waits between commits."""
        if seconds >= following.GAP_SECONDS:
            self.slept.append(seconds)


class Scene:
    """A partition on an empty store, and messages for it."""

    def __init__(self, directory: Path) -> None:
        """Settle and mill a stream without a broker."""
        settings = Settings(
            raw_topics=("raw",), tokenizer="bytes", sequence_length=63, message_bytes=64, store=directory / "store",
            splits={"train": 1000}, segment_blocks=16,
        )  # fmt: skip
        plan = plan_topic(settings, "raw")
        ((stream, recipe),) = plan.recipes.items()
        self.settled = Settled(stream, Genesis(stream.name, recipe, (0,), 16), ControlLog())
        self.store = Store.open_or_create(settings.store)
        self.store.add_stream(StreamInfo.from_genesis(self.settled.genesis, 16), None)
        self.messages = _milled(plan, recipe)
        self.starts: list[int] = []
        self.durable: list[int] = []
        self.failed: list[Exception] = []
        self.end = 0
        self.first = 0
        self.settings = settings
        self.partition = TokenPartition(
            TopicPartition(stream.tokens_topic, 0),
            SegmentContext(
                settings=settings,
                store=self.store,
                stream=stream.name,
                recipe=recipe,
                ignored=self.settled.control.ignored,
                start_partition=self.start,
                set_durable=lambda _tp, offset: self.durable.append(offset),
                end_offset=lambda _tp: self.end,
                fail=self.failed.append,
            ),
        )

    async def start(self, _tp: TopicPartition, offset: int) -> int:
        """Let it flow."""
        self.starts.append(offset)
        return EPOCH

    async def feed(self, *numbers: int, position: int | None = None) -> None:
        """Bring messages by the numbers of their blocks, each at the offset of its number."""
        records: list[Any] = [_record(n, self.messages[n]) for n in numbers]
        await self.partition.feed(
            FetchedBatch(self.partition.tp, records, numbers[-1] + 1 if position is None else position, EPOCH)
        )


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Yield a partition that has resumed on an empty topic; its clients are scripted."""
    made = Scene(tmp_path)

    @asynccontextmanager
    async def consumer(_settings: object) -> AsyncIterator[object]:
        yield object()

    async def offsets(_client: object, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (made.first, made.end))

    async def message_at(*_: object) -> None:
        return None

    monkeypatch.setattr(module, "consumer", consumer)
    for reader in (module, following):
        monkeypatch.setattr(reader, "offsets", offsets)
        monkeypatch.setattr(reader, "message_at", message_at)
    await made.partition.resume()
    yield made
    made.partition.stop()
    await made.partition.closed()


async def test_the_wait_between_vain_looks_grows_up_to_a_minute(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins anew when a look found something."""
    clock = Sleepless()
    monkeypatch.setattr(module, "asyncio", clock)
    scene.end = 3
    for _ in range(8):
        await scene.feed(2)
    assert clock.slept == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert scene.starts == [0] * 9
    assert scene.partition.progress().state == "waiting"
    assert "block 0" in str(scene.partition.waiting)
    vain = scene.partition.vain_looks
    await scene.feed(2, 0, position=3)  # the missing one comes above what follows it
    assert (scene.partition.vain_looks, clock.slept[8:]) == (0, [])
    assert vain == 7  # the first one began where the search had led, not at the partition's first offset
    await scene.feed(1, 2)
    assert (scene.partition.waiting, scene.partition.progress().state) == (None, "running")
    scene.end = 6
    await scene.feed(5)
    assert clock.slept[8:] == [2.0]


async def test_a_gap_is_looked_for_only_when_all_was_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing block may come above what follows it."""
    clock = Sleepless()
    monkeypatch.setattr(module, "asyncio", clock)
    scene.end = 6
    await scene.feed(2)
    await scene.feed(4, position=5)
    assert (clock.slept, scene.starts) == ([], [0])
    await scene.feed(0, 1, position=5)
    assert scene.starts == [0]
    await scene.feed(5, position=6)
    assert (clock.slept, scene.starts) == ([], [0, 0])  # it found some, so it looks again at once


async def test_a_commit_that_fails_later_is_not_swallowed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody awaits it; whoever runs the partition is told, and nothing more is said to be durable."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.01)
    await scene.feed(0)
    assert scene.durable == [1]
    assert scene.partition._appender is not None
    writer = scene.partition._appender.writer
    error = RuntimeError("a bug")

    def broken() -> None:
        raise error

    monkeypatch.setattr(writer, "commit", broken)
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.05)
    await scene.feed(1)
    async with asyncio.timeout(10):
        while not scene.failed:  # noqa: ASYNC110 - it tells nobody else
            await asyncio.sleep(0.01)
    assert scene.failed == [error]
    await scene.feed(2)
    assert scene.durable == [1]
    assert scene.partition.status()["block"] == 1


async def test_only_what_is_committed_is_durable(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is told after the commit, and only up to what had been appended when it began."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", 1000.0)
    await scene.feed(0)
    await scene.feed(1)
    await scene.feed(2, 3)
    assert scene.durable == [1]
    assert scene.partition.status()["block"] == 1
    scene.partition.stop()
    await scene.partition.closed()
    assert scene.durable == [1, 4]
    await scene.feed(4)
    assert scene.durable == [1, 4]


def test_a_partition_that_has_not_started_has_reached_nothing(tmp_path: Path) -> None:
    """A mirror that is to end at the head must not end because it does not follow one yet."""
    scene = Scene(tmp_path)
    flow = StreamFlow(scene.settings, scene.store, scene.settled, [0])
    (tp,) = flow.topics
    assert not flow.has_reached(tp, 0)
    flow.partitions[tp] = scene.partition
    assert not flow.has_reached(tp, 0)
    flow.reached[tp] = 3
    assert flow.has_reached(tp, 3)
    assert not flow.has_reached(tp, 4)
    scene.partition.waiting = GapError("for something")
    assert not flow.has_reached(tp, 3)
    scene.partition._gaps.vain_looks = 1
    assert flow.has_reached(tp, 4)
