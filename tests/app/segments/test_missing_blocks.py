"""A token partition on scripted clients and a real store: waits for a block, commits that fail, what is reached."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from tests.mills import text
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.chain_mill import ChainMill
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.segments import following, store_opening
from tokenmill.app.segments import token_partition as block_appender
from tokenmill.app.segments import token_partition as module
from tokenmill.app.segments.mirror import StreamFlow
from tokenmill.app.segments.token_partition import SegmentContext, TokenPartition
from tokenmill.app.settings import Settings
from tokenmill.errors import GapError
from tokenmill.reading.continuing import genesis_point
from tokenmill.store import Store, StreamInfo
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

EPOCH = 7
BLOCKS = 8


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
        chain = ChainMill(recipe, genesis_point(0, genesis_hash(recipe.fingerprint, 0)), message_bytes=1)
        records = [text(n, "x" * recipe.block_tokens) for n in range(BLOCKS)]
        self.messages: Sequence[Message] = PartitionMill(plan.stages, [chain]).feed(records).messages["train"][:BLOCKS]
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
        records: list[Any] = [
            ConsumerRecord(
                "tokens", 0, n, 0, 0, None, bytes(self.messages[n].tokens), None, -1, 0,
                ((HEADER_NAME, encode_header(self.messages[n])),),
            )
            for n in numbers
        ]  # fmt: skip
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
    for reader in (module, store_opening):
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
    monkeypatch.setattr(block_appender, "COMMIT_SECONDS", 0.01)
    await scene.feed(0)
    assert scene.durable == [1]
    assert scene.partition._appender is not None
    writer = scene.partition._appender.writer
    error = RuntimeError("a bug")

    def broken() -> None:
        raise error

    monkeypatch.setattr(writer, "commit", broken)
    monkeypatch.setattr(block_appender, "COMMIT_SECONDS", 0.05)
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
    monkeypatch.setattr(block_appender, "COMMIT_SECONDS", 1000.0)
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
