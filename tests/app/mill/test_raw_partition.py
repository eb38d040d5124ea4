"""One raw partition on a mill: what was fetched before its last start is not milled."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from faust.types import TP
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tests.service import Raw, send, service_settings
from tokenmill.app.kafka.clients import consumer, producer, read_range
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.kafka.topics import Existing
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill import raw_partition
from tokenmill.app.mill.raw_partition import RawPartition
from tokenmill.app.mill.recipes import MillContext, plan_topic
from tokenmill.app.mill.topic_changes import SkipList
from tokenmill.app.settings import Settings
from tokenmill.app.worker.in_flight import Board, Containment, Deaths, RecordsInFlight
from tokenmill.errors import EngineError, PanicError, TopicError

EPOCH = 7
DOCUMENTS = [Raw(b"document %d " % number * 5) for number in range(20)]


async def there(_partition: int) -> None:
    """Find the token partitions where they should be."""


@asynccontextmanager
async def resumed(
    settings: Settings, require_partition: Callable[[int], Awaitable[None]] = there
) -> AsyncIterator[RawPartition]:
    """Yield partition 0 of the only raw topic, resumed with `EPOCH`, on real clients."""
    (raw_topic,) = settings.raw_topics
    plan = plan_topic(settings, raw_topic)
    streams = [await settle(settings, s, recipe, plan.tokenizer.content) for s, recipe in plan.recipes.items()]
    async with producer(settings) as client:

        async def publish(
            topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
        ) -> int:
            return int((await client.send_and_wait(topic, value, key, partition, headers=list(headers))).offset)

        async def partitions(topic: str) -> int:
            return len(await client.partitions_for(topic))

        async def start_partition(_tp: TP, _offset: int) -> int:
            return EPOCH

        context = MillContext(
            settings=settings,
            stages=plan.stages,
            streams=streams,
            skip_list=SkipList(settings, streams),
            token_topics=defaultdict(lambda: Existing(1, {"max.message.bytes": "1048576"})),
            letter_bytes=defaultdict(lambda: 1 << 20),
            require_partition=require_partition,
            send=publish,
            partitions=partitions,
            leader=lambda _tp: None,
            start_partition=start_partition,
            set_durable=lambda _tp, _offset: None,
        )
        milled = RawPartition(TP(raw_topic, 0), context)
        await milled.resume()
        try:
            yield milled
        finally:
            milled.stop()


async def fetched(settings: Settings, count: int = len(DOCUMENTS)) -> list[ConsumerRecord]:
    """Return what the raw topic holds."""
    where = TopicPartition(settings.raw_topics[0], 0)
    async with consumer(settings) as client:
        return [record async for record in read_range(client, where, 0, count)]


async def test_batch_of_another_epoch_is_not_milled(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Records from before a seek, which would leave a hole or come twice, change nothing."""
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000})
    send(settings, DOCUMENTS)
    records = await fetched(settings)
    async with resumed(settings) as partition:
        await partition.feed(FetchedBatch(partition.tp, records[10:], len(records), EPOCH - 1))
        assert partition.position == 0
        await partition.feed(FetchedBatch(partition.tp, records, len(records), EPOCH))
        assert partition.position == len(records)
        assert partition._mill is not None
        assert partition._mill.chains["train"].totals.kept == len(records)


async def test_carries_are_written_though_there_is_always_more_to_mill(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """No tick finds the partition idle; a split without documents goes on with the others all the same."""
    settings = service_settings(
        broker, topic(), tmp_path, splits={"train": 1000, "thin": 1}, shards=1001, carry_bytes=1
    )
    send(settings, DOCUMENTS)
    records = await fetched(settings)
    async with resumed(settings) as partition:
        await partition.feed(FetchedBatch(partition.tp, records, len(records), EPOCH))
        assert partition._mill is not None
        assert not partition._mill.chains["thin"].totals.kept
        async with asyncio.timeout(30):
            while partition._publishers["thin"].durable.next_offset < len(records):  # noqa: ASYNC110 - told nobody
                await asyncio.sleep(0.02)


async def test_stopped_partition_mills_nothing(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """After a revocation, what still waits in the agent's queue is let go."""
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000})
    send(settings, DOCUMENTS)
    records = await fetched(settings)
    async with resumed(settings) as partition:
        partition.stop()
        await partition.feed(FetchedBatch(partition.tp, records, len(records), EPOCH))
        assert partition.position == 0


async def test_partition_waits_for_its_token_partition(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may not add it says what is missing, and looks again until somebody has added it; nothing else is harmed."""
    monkeypatch.setattr(raw_partition, "WAIT_SECONDS", 0.01)
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000})
    looks = 0

    async def missing_at_first(partition: int) -> None:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise TopicError(f"partition {partition} is missing: grant Alter")

    with capture_logs() as said:
        async with resumed(settings, missing_at_first) as partition:
            assert partition.status()["waiting"] is None
            assert partition.halted is None

    waits = [line for line in said if line["event"] == "waiting"]
    assert [line["reason"] for line in waits] == ["partition 0 is missing: grant Alter"] * 3


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (RuntimeError("unexpected"), True),
        (MemoryError(), True),
        (EngineError("the engines differ"), False),
        (PanicError("native code panicked"), False),
    ],
)
async def test_what_ends_the_worker_leaves_the_note(
    broker: Broker, topic: TopicFactory, tmp_path: Path, error: Exception, *, noted: bool
) -> None:
    """Its supervisor reads there what was in flight; a partition that halts says it itself, with the command."""
    settings = service_settings(broker, topic(), tmp_path, splits={"train": 1000})
    send(settings, DOCUMENTS[:2])
    (raw_topic,) = settings.raw_topics
    records = await fetched(settings, 2)
    with Board.file() as file:
        board = Board(file.fileno())
    async with resumed(settings) as partition:
        partition._containment = Containment(partition.tp, board, Deaths.inherited())
        note = partition._containment.note

        def fail(_records: Sequence[object], _looked: object = None) -> None:
            note(1, 1)
            raise error

        assert partition._mill is not None
        raised = pytest.raises(type(error)) if noted else nullcontext()
        with patch.object(partition._mill, "feed", fail), raised:
            await partition.feed(FetchedBatch(partition.tp, records, len(records), EPOCH))
        board.pardon()  # as whatever ends a process does
        assert list(board.records_in_flight()) == ([RecordsInFlight(raw_topic, 0, 1, 1)] if noted else [])
        assert (partition.halted is None) == noted
        if isinstance(error, PanicError):
            assert f"`tokenmill skip {raw_topic} 0 1`" in str(partition.halted)
