"""The transport under a running Faust and a real broker: each override is called, and does what only it can do."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import OffsetOutOfRangeError
from faust.types import TP

from tests.conftest import TopicFactory
from tests.service import WAIT_SECONDS, Raw, send
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.fetched_batches import FetchedBatch, unpacked
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import transport as transport_module
from tokenmill.app.worker.transport import (
    FETCH_BYTES,
    FETCH_WAIT_MS,
    FETCHED_BYTES,
    GATHER_WAIT_MS,
    LEAST_FETCH_BYTES,
    QUEUED_BATCHES,
    BatchApp,
    BatchConsumer,
    LeaderChangedError,
    Partitions,
    faust_options,
    fetch_share,
)

RECORDS = 60


class Recorder:
    def __init__(self) -> None:
        self.given: list[set[TP]] = []
        self.revocations = 0
        self.failures: list[BaseException] = []
        self.batches: list[FetchedBatch] = []
        self.open = asyncio.Event()
        self.open.set()

    async def assigned(self, partitions: set[TP]) -> None:
        self.given.append(partitions)

    def revoked(self) -> None:
        self.revocations += 1

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def offsets(self, partition: int) -> list[int]:
        return [
            record.offset
            for batch in self.batches
            if batch.tp.partition == partition
            for record in unpacked(batch.records, batch.position)
        ]


class Running(Recorder):
    app: BatchApp

    @property
    def consumer(self) -> BatchConsumer:
        return self.app.batch_consumer

    @property
    def client(self) -> Any:
        return self.consumer._thread._consumer


@asynccontextmanager
async def running(settings: Settings, *, gathers: bool = False) -> AsyncIterator[Running]:
    """Run an app on the first raw topic until the block ends; in the block it has its partitions."""
    found = Running()
    app = BatchApp(settings.group, **faust_options(settings))
    app.gathers = gathers
    app.handler, found.app = cast("Partitions[Any]", found), app
    prepared = asyncio.Event()

    async def prepare() -> None:
        prepared.set()

    app.prepare = prepare

    @app.agent(app.topic(settings.raw_topics[0], value_type=bytes), isolated_partitions=True)
    async def agent(stream: Any) -> None:
        async for batch in stream:
            found.batches.append(batch)
            await found.open.wait()

    await app.start()
    try:
        assert prepared.is_set()
        await until(lambda: bool(found.given))
        yield found
    finally:
        found.open.set()
        await app.stop()
    assert found.revocations


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - Faust tells nobody
            await asyncio.sleep(0.02)


@pytest.fixture
def settings(broker: Broker, topic: TopicFactory) -> Settings:
    return Settings(
        bootstrap_servers=broker.bootstrap_servers,
        raw_topics=(topic(2),),
        group=f"group-{uuid.uuid4().hex}",
        session_timeout=6.0,
    )


async def test_partitions_wait_until_they_are_started_and_begin_where_they_are_told(settings: Settings) -> None:
    (name,) = settings.raw_topics
    first, second = TP(name, 0), TP(name, 1)
    send(settings, [Raw(b"%d" % n, n % 2) for n in range(2 * RECORDS)])
    async with running(settings) as found:
        assert found.given == [{first, second}]
        assert found.client.paused() == {TopicPartition(*first), TopicPartition(*second)}
        generation = await found.consumer.start_partition(first, 7)
        await until(lambda: found.offsets(0)[-1:] == [RECORDS - 1])
        assert found.offsets(0) == list(range(7, RECORDS))
        assert not found.offsets(1)
        assert {batch.generation for batch in found.batches} == {generation} == {1}
        assert found.batches[-1].position == RECORDS
        assert found.consumer.ends()[first] == (RECORDS, RECORDS)
        assert found.app.why_not_ready(prepared=True) is None
        assert await committed(settings) == {}
        found.consumer.durable[first] = 11
        while await committed(settings) != {TopicPartition(*first): 11}:  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(0.1)
        assert not found.failures
    async with running(settings) as found:
        await found.consumer.start_partition(first, 50)
        await until(lambda: found.offsets(0)[-1:] == [RECORDS - 1])
        assert found.offsets(0) == list(range(50, RECORDS))


async def test_only_what_was_committed_is_read_and_gaps_are_told(settings: Settings) -> None:
    (name,) = settings.raw_topics
    writer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=uuid.uuid4().hex)
    await writer.start()
    for end in (writer.commit_transaction, writer.abort_transaction):
        await writer.begin_transaction()
        for _ in range(3):
            await writer.send_and_wait(name, b"text", partition=0)
        await end()
    await writer.stop()
    async with running(settings) as found:
        assert found.client._isolation_level == "read_committed"
        await found.consumer.start_partition(TP(name, 0), 0)
        await until(lambda: bool(found.batches) and found.batches[-1].position == 8)
        assert found.offsets(0) == [0, 1, 2]


async def test_what_a_fetch_cannot_get_over_is_told(settings: Settings) -> None:
    """An offset out of range, and a leader that is another: no jump, no record, the app decides."""
    (name,) = settings.raw_topics
    send(settings, [Raw(b"x") for _ in range(RECORDS)])
    async with admin(settings) as client:
        await client.delete_records({TopicPartition(name, 0): RecordsToDelete(10)})
    async with running(settings) as found:
        assert found.client._auto_offset_reset == "none"
        await found.consumer.start_partition(TP(name, 0), 0)
        await until(lambda: bool(found.failures))
        assert isinstance(found.failures[0], OffsetOutOfRangeError)
        assert not found.offsets(0)
    async with running(settings) as found:
        await found.consumer.start_partition(TP(name, 0), 10)
        found.consumer._thread._leaders[TP(name, 0)] = 99
        await until(lambda: bool(found.failures))
        assert isinstance(found.failures[0], LeaderChangedError)


async def test_an_agent_that_is_held_up_holds_up_its_partition(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = settings.raw_topics
    held = TP(name, 0)
    send(settings, [Raw(b"x" * 1000, n % 2) for n in range(20 * RECORDS)])
    monkeypatch.setattr(transport_module, "fetch_share", lambda partitions: 2000 * partitions)
    async with running(settings) as found:
        assert found.client._fetcher._max_partition_fetch_bytes == 4000
        found.open.clear()
        await found.consumer.start_partition(held, 0)
        await until(lambda: held not in found.consumer._get_active_partitions())
        waiting = next(iter(found.app.topics._tp_index[held])).queue.qsize()  # type: ignore[attr-defined]
        assert 0 < waiting <= 2 * QUEUED_BATCHES
        found.open.set()
        await found.consumer.start_partition(TP(name, 1), 0)
        await until(lambda: all(len(found.offsets(partition)) == 10 * RECORDS for partition in (0, 1)))
        assert found.offsets(0) == found.offsets(1) == list(range(10 * RECORDS))
        assert held in found.consumer._get_active_partitions()


async def test_the_client_that_fetches_has_our_settings_and_a_name_in_its_group(settings: Settings) -> None:
    """Not what Faust fixes: they are set behind its back, on the client that is about to start."""
    async with running(settings) as found:
        fetcher = found.client._fetcher
        assert (fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms) == (1, FETCH_WAIT_MS)
        assert fetcher._max_partition_fetch_bytes == fetch_share(2)
        async with admin(settings) as client:
            (answer,) = await client.describe_consumer_groups([settings.group])
        ((member, *_),) = answer.groups[0][5]
        assert found.app.member == member
    assert found.app.why_not_ready(prepared=True) == "no broker is connected"


async def test_an_app_that_gathers_waits_for_as_much_as_one_partition_gives(settings: Settings) -> None:
    """Once there are records; more would never be there when one partition alone has a backlog.

    Where a fetch brought nothing, the next one waits for the first byte.
    """
    async with running(settings, gathers=True) as found:
        fetcher = found.client._fetcher
        seen: set[tuple[int, int]] = set()
        thread: Any = found.consumer._thread
        gather = thread._gather

        def noted(client: Any, *, gathers: bool) -> None:
            gather(client, gathers=gathers)
            seen.add((fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms))

        thread._gather = noted
        await until(lambda: seen == {(1, FETCH_WAIT_MS)})
        await found.consumer.start_partition(TP(settings.raw_topics[0], 0), 0)
        send(settings, [Raw(b"x" * 1000, 0)])
        await until(lambda: seen == {(1, FETCH_WAIT_MS), (fetch_share(2), GATHER_WAIT_MS)})
        assert fetcher._max_partition_fetch_bytes == fetch_share(2)


@pytest.mark.parametrize("partitions", [0, 1, 8, 9, 25, 26, 256])
def test_many_partitions_share_what_a_fetch_may_bring(partitions: int) -> None:
    assert fetch_share(partitions) == LEAST_FETCH_BYTES or fetch_share(partitions) * partitions <= FETCHED_BYTES
    assert Settings().message_bytes < LEAST_FETCH_BYTES <= fetch_share(partitions) <= FETCH_BYTES
    assert partitions > FETCHED_BYTES // FETCH_BYTES or fetch_share(partitions) == FETCH_BYTES


async def test_the_producer_asks_all_replicas_and_writes_nothing_twice(settings: Settings) -> None:
    (name,) = settings.raw_topics
    async with running(settings) as found:
        metadata = await found.app.producer.send_and_wait(name, b"k", b"v", 1, None, [("h", b"x")])
        assert metadata.offset == 0
        client: Any = found.app.producer._producer  # type: ignore[attr-defined]
        assert client._sender._acks == -1
        assert client._txn_manager.producer_id >= 0


async def committed(settings: Settings) -> dict[TopicPartition, int]:
    async with admin(settings) as client:
        found = await client.list_consumer_group_offsets(settings.group)
    return {partition: one.offset for partition, one in found.items() if one.offset >= 0}
