"""Faust as the workers use it: overrides that fit, partitions that resume by themselves, batches that are their own."""

import asyncio
import random
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import faust
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.consumer import Fetcher
from faust.types import TP

from tests.app.conftest import EndedError, rest, until
from tests.conftest import TopicFactory
from tests.milled import SPLITS, records
from tests.service import Raw, Service, send, service_settings, stored_blocks
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.kafka.cluster import TESTED, require_tested
from tokenmill.app.kafka.fetched_batches import FetchedBatch, unpacked
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import ending, transport
from tokenmill.app.worker.transport import AssignedConductor, BatchApp, BatchConsumer, ConsumerThread, Partitions

ONE, TWO = TP("raw", 0), TP("raw", 1)


class Scripted:
    resumes = resumed = stops = 0
    halted = False
    error: Exception | None = None

    def __init__(self, tp: TP) -> None:
        self.tp, self.gate, self.fed = tp, asyncio.Event(), list[int]()

    async def resume(self) -> None:
        self.resumes += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.resumed += 1

    async def feed(self, batch: FetchedBatch) -> None:
        if self.error is not None:
            raise self.error
        self.fed.append(batch.position)

    def may_go_on(self) -> bool:
        return self.halted

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch, made: list[Scripted]) -> Partitions[Scripted]:
    """Return what owns partitions; the end of the process is an `EndedError`."""
    monkeypatch.setattr(ending, "end_for", Mock(side_effect=EndedError))

    def opened(tp: TP) -> Scripted:
        made.append(Scripted(tp))
        return made[-1]

    return Partitions(opened)


@pytest.fixture
def made() -> list[Scripted]:
    return []


async def test_partitions_resume_side_by_side_in_the_background(
    owner: Partitions[Scripted], made: list[Scripted]
) -> None:
    await owner.assigned({TWO, ONE})
    await rest()
    assert [(one.tp, one.resumes, one.resumed) for one in made] == [(ONE, 1, 0), (TWO, 1, 0)]
    made[1].gate.set()
    await rest()
    assert [one.resumed for one in made] == [0, 1]
    owner.revoked()


async def test_what_is_given_up_is_stopped_and_resumes_no_more(
    owner: Partitions[Scripted], made: list[Scripted]
) -> None:
    await owner.assigned({ONE})
    await rest()
    await owner.assigned({ONE, TWO})
    made[0].gate.set()
    await rest()
    assert (made[0].stops, made[0].resumed) == (1, 0)
    assert [one.resumes for one in made] == [1, 1, 1]
    owner.revoked()
    assert owner.owned == {}
    await owner.feed(FetchedBatch(ONE, [], 5, 1))
    assert [one.fed for one in made] == [[], [], []]
    assert [one.stops for one in made] == [1, 1, 1]


async def test_a_batch_goes_to_its_own_partition(owner: Partitions[Scripted], made: list[Scripted]) -> None:
    await owner.assigned({ONE, TWO})

    async def batches() -> AsyncIterator[FetchedBatch]:
        for position, tp in enumerate((ONE, TWO, TWO, TP("raw", 2))):
            yield FetchedBatch(tp, [], position, 1)

    await owner.feed_all(batches())
    assert [one.fed for one in made] == [[0], [1, 2]]
    owner.revoked()


async def test_an_error_ends_the_process(owner: Partitions[Scripted], made: list[Scripted]) -> None:
    await owner.assigned({ONE})
    await rest()
    made[0].error = RuntimeError("a bug")
    with pytest.raises(EndedError):
        await owner.feed(FetchedBatch(ONE, [], 5, 1))
    (task,) = owner._tasks
    made[0].gate.set()
    await asyncio.wait({task})
    assert isinstance(task.exception(), EndedError)


async def test_an_actor_that_is_cancelled_ends_in_order(owner: Partitions[Scripted], made: list[Scripted]) -> None:
    """Faust would take it for one that crashed."""
    waiting = asyncio.Event()

    async def batches() -> AsyncIterator[FetchedBatch]:
        waiting.set()
        await asyncio.Event().wait()
        yield FetchedBatch(ONE, [], 0, 1)

    task = asyncio.create_task(owner.feed_all(batches()))
    await waiting.wait()
    task.cancel()
    await task
    assert not task.cancelled()


async def test_an_actor_that_is_cancelled_while_it_writes_has_closed_its_stream(
    owner: Partitions[Scripted], made: list[Scripted]
) -> None:
    """At once: Faust ends a worker whose stream is still registered for a lost partition at the next assignment."""
    writing, closed = asyncio.Event(), asyncio.Event()

    async def batches() -> AsyncIterator[FetchedBatch]:
        try:
            yield FetchedBatch(ONE, [], 0, 1)
        finally:
            closed.set()

    async def write(_: FetchedBatch) -> None:
        writing.set()
        await asyncio.Event().wait()

    await owner.assigned({ONE})
    made[0].feed = write  # type: ignore[assignment, method-assign]
    task = asyncio.create_task(owner.feed_all(batches()))
    closed_in_time = []
    task.add_done_callback(lambda _: closed_in_time.append(closed.is_set()))
    await writing.wait()
    task.cancel()
    await task
    await rest()
    assert closed_in_time == [True]
    owner.revoked()


async def test_what_halted_resumes_again_once(owner: Partitions[Scripted], made: list[Scripted]) -> None:
    await owner.assigned({ONE, TWO})
    for one in made:
        one.gate.set()
    await rest()
    owner.look_after_halted()
    await rest()
    assert [one.resumes for one in made] == [1, 1]
    made[1].halted = True
    made[1].gate.clear()
    for _ in range(3):
        owner.look_after_halted()
        await rest()
    assert [one.resumes for one in made] == [1, 2]
    owner.revoked()
    await owner.assigned({TWO})
    await rest()
    assert made[2].resumes == 1
    owner.revoked()


def test_another_version_of_faust_than_gets_installed_is_refused() -> None:
    """An override of what it calls otherwise would never be called. An upgrade has to look at the transport."""
    require_tested("faust-streaming", faust.__version__)
    with pytest.raises(ImportError, match=r"^faust-streaming 0\.99\.0 is not .*: install 0\.15\.3$"):
        require_tested("faust-streaming", "0.99.0")
    wanted = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["app"]
    assert {f"{name}=={tested}" for name, tested in TESTED.items()} <= {one.partition("[")[0] for one in wanted}


OVERRIDES: dict[type, str] = {
    transport.PausingListener: "on_partitions_assigned",
    ConsumerThread: "_create_worker_consumer _fetch_records",
    BatchConsumer: "RebalanceListener _drain_messages _filter_tps_with_pending_acks _new_consumer_thread _new_offset "
    "ack on_partitions_revoked perform_seek verify_event_path",
    AssignedConductor: "on_partitions_assigned",
    transport.DurableProducer: "_new_producer _settings_extra",
    transport.BatchTransport: "Conductor Consumer Producer",
    BatchApp: "_new_producer_transport _new_transport on_first_start on_stop",
}


@pytest.mark.parametrize("own", OVERRIDES)
def test_every_override_is_of_a_part_that_is_there(own: type) -> None:
    """Whatever one of the transport's classes has by the same name as the class of Faust's below it."""
    bases = own.__mro__[1:]
    names = {name for name in vars(own) if any(name in vars(base) for base in bases)} - {"logger", "_abc_impl"}
    assert {name for name in names if not name.startswith("__")} == set(OVERRIDES[own].split())


def consumer_thread(client: AIOKafkaConsumer) -> ConsumerThread:
    """Return the thread's object around a real consumer, without the thread: its coroutines run in the test's loop."""
    thread: Any = object.__new__(ConsumerThread)
    thread.generations, thread._leaders, thread._leaders_before = {}, {}, {}
    thread.consumer = SimpleNamespace(flow_active=True)
    thread._consumer = client
    return cast("ConsumerThread", thread)


async def test_records_fetched_before_a_seek_are_stamped_with_the_generation_before_it(
    settings: Settings, topic: TopicFactory
) -> None:
    rng, tp = random.Random(7), TP(topic(), 0)
    records, seeks = 3000, 40
    send(settings, [Raw(b"x" * 100) for _ in range(records)], tp.topic)
    started, seen = dict[int, int](), dict[int, list[int]]()
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
                found = await thread._fetch_records(client, {tp}, timeout=0.05, max_records=50)
                for brought in found.values():
                    offsets_brought = [record.offset for record in unpacked(brought, records)]
                    seen.setdefault(found.generations[tp], []).extend(offsets_brought)

        async def brought_some(generations: int) -> None:
            await until(lambda: len(seen) > generations, fetching)

        await seek(0)
        fetching = asyncio.create_task(fetch())
        for number in range(seeks):
            if number % 2:
                await asyncio.sleep(rng.uniform(0, 0.01))
            else:
                await brought_some(len(seen))
            await seek(rng.randrange(records - 100))
        await brought_some(len(seen))
        fetching.cancel()
    assert len(seen) > seeks // 2
    for generation, found in seen.items():
        assert found == list(range(started[generation], started[generation] + len(found)))


async def test_partition_that_was_revoked_is_not_started(settings: Settings, topic: TopicFactory) -> None:
    """What is no longer assigned gets no generation, so nothing of it is taken."""
    name = topic(2)
    async with consumer(settings) as client:
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


async def test_leader_is_watched_from_the_assignment_on(settings: Settings, topic: TopicFactory) -> None:
    """What a worker read before it starts a partition was another leader's log, if it changed in between."""
    tp = TP(topic(), 0)
    partition = TopicPartition(tp.topic, 0)
    async with consumer(settings) as client:
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
    delivered: list[Any] = []
    queue = SimpleNamespace(put_nowait_enhanced=lambda event, **_: delivered.append(event))
    batch_consumer.app = SimpleNamespace(
        consumer_generation_id=1, create_event=lambda _key, batch, _headers, _message: batch,
        topics=SimpleNamespace(_tp_index={ONE: [SimpleNamespace(queue=queue)]}),
    )  # fmt: skip
    batch_consumer._passed[ONE] = 5
    for position in (5, 9, 9):
        records = transport.StampedRecords()
        records.generations, records.positions = {ONE: 2}, {ONE: position}
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
    one, other = streams = [cast("Any", source.clone(active_partitions=tps)) for tps in ({ONE}, {TWO})]
    conductor = AssignedConductor(app, loop=app.loop)
    for stream in streams:
        conductor.add(stream)
    await conductor.on_partitions_assigned({ONE, TWO})
    assert conductor._tp_index == {ONE: {one}, TWO: {other}}
    await conductor.on_partitions_assigned({ONE})
    assert conductor._tp_index == {ONE: {one}}
    assert list(conductor) == [one]
    app.batch_consumer._thread.thread_loop.close()  # never started


@pytest.fixture
def batch_consumer() -> BatchConsumer:
    alone = object.__new__(BatchConsumer)
    alone.durable, alone._passed, alone._pressure, alone._buffered_partitions = {}, {}, {}, set()
    return alone


@pytest.mark.newest
def test_the_service_works_with_the_newest_libraries(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    folder = Path(sys.prefix) / "newest"
    assert (folder / "aiokafka").is_dir(), "run `make test-newest`, which installs them"
    settings = service_settings(broker, topic(2), tmp_path, splits=SPLITS)
    sent = records()
    with Service(settings, tmp_path, PYTHONPATH=str(folder)) as service:
        service.entry = "tests.app.newest_libraries"
        (mill,) = service.mill()
        service.segment()
        send(settings, sent[:120])
        service.wait_until_complete()
        mill.stop()
        service.mill()
        send(settings, sent[120:])
        expected = service.wait_until_complete()
        print(mill.log.partition("\n")[0])  # noqa: T201 - which versions it was
        assert all(str(folder) in worker.log.partition("\n")[0] for worker in service.workers)
    assert stored_blocks(settings, expected) == {chain: len(blocks) for chain, blocks in expected.items()}
