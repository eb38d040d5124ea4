"""Faust's private parts are as expected, and nothing that was fetched before a seek is taken for what comes after."""

import asyncio
import random
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import faust
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.consumer import Fetcher
from faust.types import TP

from tests.app.privates import used
from tests.conftest import TopicFactory
from tests.service import Raw, send
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.kafka.cluster import TESTED, require_tested
from tokenmill.app.kafka.fetched_batches import unpacked
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import transport
from tokenmill.app.worker.transport import (
    AssignedConductor,
    BatchApp,
    BatchConsumer,
    BatchTransport,
    ConsumerThread,
    DurableProducer,
    PausingListener,
    StampedRecords,
)

RECORDS = 3000
SEEKS = 40


def test_another_version_of_faust_is_refused() -> None:
    """An override of what it calls otherwise would never be called."""
    require_tested("faust-streaming", faust.__version__)
    with pytest.raises(ImportError, match=r"^faust-streaming 0\.99\.0 is not .*: install 0\.15\.3$"):
        require_tested("faust-streaming", "0.99.0")


def test_versions_are_those_that_get_installed() -> None:
    """What was tested is what the project asks for, so that an upgrade has to look at the transport."""
    wanted = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["app"]
    assert {f"{name}=={tested}" for name, tested in TESTED.items()} <= {one.partition("[")[0] for one in wanted}


@pytest.mark.parametrize(
    ("own", "overridden"),
    [
        (PausingListener, {"on_partitions_assigned"}),
        (ConsumerThread, {"_create_worker_consumer", "_fetch_records"}),
        (
            BatchConsumer,
            {
                *("RebalanceListener", "_drain_messages", "_filter_tps_with_pending_acks", "_new_consumer_thread"),
                *("_new_offset", "ack", "on_partitions_revoked", "perform_seek", "verify_event_path"),
            },
        ),
        (AssignedConductor, {"on_partitions_assigned"}),
        (DurableProducer, {"_new_producer", "_settings_extra"}),
        (BatchTransport, {"Conductor", "Consumer", "Producer"}),
        (BatchApp, {"_new_producer_transport", "_new_transport", "on_first_start", "on_stop"}),
    ],
)
def test_every_override_is_of_a_part_that_is_there(own: type, overridden: set[str]) -> None:
    """Whatever one of the transport's classes has by the same name as the class of Faust's below it."""
    bases = own.__mro__[1:]
    names = {name for name in vars(own) if any(name in vars(base) for base in bases)} - {"logger", "_abc_impl"}
    assert {name for name in names if not name.startswith("__")} == overridden


def test_private_parts_of_libraries_are_these() -> None:
    """By the source: what the transport gets, sets and calls of Faust and aiokafka, for whoever upgrades them."""
    assert used([transport]) == {
        *(
            "_auto_offset_reset",
            "_buffered_partitions",
            "_consumer",
            "_consumer_timeout",
            "_coordinator",
            "_ensure_consumer",
            "_ensure_producer",
        ),
        *("_fetch_max_wait_ms", "_fetch_min_bytes", "_fetcher", "_get_active_partitions", "_getmany"),
        *("_isolation_level", "_max_partition_fetch_bytes", "_stopped", "_subscription", "_tp_index"),
        *("_value_deserializer",),
    }


def consumer_thread(client: AIOKafkaConsumer) -> ConsumerThread:
    """Return the thread's object around a real consumer, without the thread: its coroutines run in the test's loop."""
    thread: Any = object.__new__(ConsumerThread)
    thread.generations, thread._leaders, thread._leaders_before = {}, {}, {}
    thread.consumer = SimpleNamespace(flow_active=True)
    thread._consumer = client
    return cast("ConsumerThread", thread)


async def test_records_fetched_before_a_seek_are_stamped_with_the_generation_before_it(
    broker: Broker, topic: TopicFactory
) -> None:
    """Under seeks at random moments, the records of each generation begin at its offset and have no gap."""
    rng = random.Random(7)
    tp = TP(topic(), 0)
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(tp.topic,))
    send(settings, [Raw(b"x" * 100) for _ in range(RECORDS)])
    started: dict[int, int] = {}
    seen: dict[int, list[int]] = {}
    async with consumer(settings, max_partition_fetch_bytes=4000) as client:
        client.assign([TopicPartition(*tp)])
        await offsets(client, [TopicPartition(*tp)])  # who leads is known from here on
        thread = consumer_thread(client)

        async def seek(offset: int) -> None:
            generation = await thread.start_at(tp, offset)
            assert generation is not None
            started[generation] = offset

        async def fetch() -> None:
            while True:
                records = await thread._fetch_records(client, {tp}, timeout=0.05, max_records=50)
                for brought in records.values():
                    offsets_brought = [record.offset for record in unpacked(brought, RECORDS)]
                    seen.setdefault(records.generations[tp], []).extend(offsets_brought)

        async def brought_some(generations: int) -> None:
            while len(seen) == generations and not fetching.done():  # noqa: ASYNC110 - two coroutines that take turns
                await asyncio.sleep(0.001)
            assert not fetching.done(), fetching.exception()

        await seek(0)
        fetching = asyncio.create_task(fetch())
        for number in range(SEEKS):
            if number % 2:
                await asyncio.sleep(rng.uniform(0, 0.01))
            else:
                await brought_some(len(seen))
            await seek(rng.randrange(RECORDS - 100))
        await brought_some(len(seen))
        fetching.cancel()
    assert len(seen) > SEEKS // 2
    for generation, found in seen.items():
        assert found == list(range(started[generation], started[generation] + len(found)))


async def test_partition_that_was_revoked_is_not_started(broker: Broker, topic: TopicFactory) -> None:
    """What is no longer assigned gets no generation, so nothing of it is taken."""
    name = topic(2)
    async with consumer(Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(name,))) as client:
        client.assign([TopicPartition(name, 0)])
        thread = consumer_thread(client)
        assert await thread.start_at(TP(name, 1), 0) is None
        assert thread.generations == {}


def test_consumer_commits_what_the_app_says_and_nothing_else(batch_consumer: BatchConsumer) -> None:
    """Acknowledgements decide nothing; the offsets to commit are those that the app made durable."""
    tp = TP("raw", 3)
    message = SimpleNamespace(acked=False)
    assert batch_consumer.ack(message) is False
    assert message.acked
    assert batch_consumer._filter_tps_with_pending_acks() == []
    batch_consumer.durable[tp] = 17
    assert batch_consumer._filter_tps_with_pending_acks() == [tp]
    assert batch_consumer._new_offset(tp) == 17
    assert batch_consumer._new_offset(TP("raw", 4)) is None


async def test_leader_is_watched_from_the_assignment_on(broker: Broker, topic: TopicFactory) -> None:
    """What a worker read before it starts a partition was another leader's log, if it changed in between."""
    tp = TP(topic(), 0)
    partition = TopicPartition(tp.topic, 0)
    async with consumer(Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(tp.topic,))) as client:
        client.assign([partition])
        await offsets(client, [partition])
        thread = consumer_thread(client)
        thread.hold([partition])
        now = thread._leader(tp)
        for before, watched in ((now, now), (None, now), (-1, now), (77, 77)):
            thread.hold([partition])
            thread._leaders_before[tp] = before
            await thread.start_at(tp, 0)
            await thread.start_at(tp, 0)
            assert thread._leaders[tp] == watched


def test_silent_partition_brings_a_batch_when_its_position_moves(batch_consumer: Any) -> None:
    """A fetch that only passed offsets without records moves the position; one that passed nothing brings nothing."""
    tp = TP("raw", 0)
    delivered: list[Any] = []
    queue = SimpleNamespace(put_nowait_enhanced=lambda event, **_: delivered.append(event))
    batch_consumer.app = SimpleNamespace(
        consumer_generation_id=1,
        create_event=lambda _key, batch, _headers, _message: batch,
        topics=SimpleNamespace(_tp_index={tp: [SimpleNamespace(queue=queue)]}),
    )
    batch_consumer._passed[tp] = 5
    for position in (5, 9, 9):
        records = StampedRecords()
        records.generations, records.positions = {tp: 2}, {tp: position}
        batch_consumer._deliver(records)
    assert [(batch.records, batch.position, batch.generation) for batch in delivered] == [((), 9, 2)]


async def test_a_worker_that_is_stopped_during_a_rebalance_does_not_crash(batch_consumer: Any) -> None:
    """Faust's own fetcher is cancelled then; it takes a cancellation during a rebalance for a reason to start anew."""
    polled = asyncio.Event()

    async def poll(**_: object) -> None:
        polled.set()
        await asyncio.Event().wait()

    batch_consumer._stopped, batch_consumer.flow_active = asyncio.Event(), True
    batch_consumer._get_active_partitions, batch_consumer._getmany = lambda: {TP("raw", 0)}, poll
    fetcher: Any = Fetcher(cast("Any", SimpleNamespace(consumer=batch_consumer, rebalancing=True)))
    await fetcher.start()
    await asyncio.wait_for(polled.wait(), 10)
    await fetcher.stop()
    assert not fetcher.crashed


async def test_a_stream_of_a_lost_partition_whose_actor_has_not_ended_crashes_no_worker() -> None:
    """As where a worker is stopped during a rebalance: it gets nothing more, and the others get their own."""
    app = BatchApp("conductor", broker="kafka://127.0.0.1:1", loop=asyncio.get_running_loop())
    source = app.topic("raw")
    kept, lost = {TP("raw", 0)}, {TP("raw", 1)}
    streams: dict[str, Any] = {
        name: source.clone(active_partitions=tps) for name, tps in (("kept", kept), ("lost", lost))
    }
    conductor = AssignedConductor(app, loop=app.loop)
    for stream in streams.values():
        conductor.add(stream)
    await conductor.on_partitions_assigned(kept | lost)
    assert conductor._tp_index == {TP("raw", 0): {streams["kept"]}, TP("raw", 1): {streams["lost"]}}
    await conductor.on_partitions_assigned(kept)
    assert conductor._tp_index == {TP("raw", 0): {streams["kept"]}}
    assert list(conductor) == [streams["kept"]]
    app.batch_consumer._thread.thread_loop.close()  # never started


@pytest.fixture
def batch_consumer() -> BatchConsumer:
    alone = object.__new__(BatchConsumer)
    alone.durable, alone._passed, alone._pressure, alone._buffered_partitions = {}, {}, {}, set()
    return alone
