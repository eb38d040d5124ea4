"""Faust's private parts are as expected, and nothing that was fetched before a seek is taken for what comes after."""

import asyncio
import random
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import aiokafka
import faust
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.consumer import Consumer, Fetcher
from faust.types import TP
from structlog.testing import capture_logs

from tests.app.privates import named, used
from tests.conftest import TopicFactory
from tests.service import Raw, send
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import consumer_thread as thread_module
from tokenmill.app.worker import transport
from tokenmill.app.worker.consumer_thread import ConsumerThread, PausingListener, StampedRecords
from tokenmill.app.worker.faust_setup import ATTRIBUTES, CALLED, OVERRIDDEN, VERSIONS, check_faust, warn_of_versions
from tokenmill.app.worker.transport import AssignedConductor, BatchApp, BatchConsumer, BatchTransport, DurableProducer

FAUST, AIOKAFKA = ("faust-streaming", "0.15.3"), ("aiokafka", "0.14.0")
RECORDS = 3000
SEEKS = 40


def test_installed_libraries_have_all_parts() -> None:
    """The overrides were written for what is installed."""
    check_faust()


@pytest.mark.parametrize(("library", "name", "tested"), [(faust, *FAUST), (aiokafka, *AIOKAFKA)])
def test_another_version_with_all_parts_works_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, library: ModuleType, name: str, tested: str
) -> None:
    """One line names both versions and what to run; nothing is refused."""
    monkeypatch.setattr(library, "__version__", "0.99.0")
    check_faust()
    with capture_logs() as lines:
        warn_of_versions()
    (line,) = lines
    assert (line["log_level"], line["libraries"]) == ("warning", [f"{name} 0.99.0 (tested: {tested})"])
    assert "make test-newest" in line["event"]


def test_the_tested_versions_are_used_without_a_warning() -> None:
    """A line at every start would be read by nobody."""
    with capture_logs() as lines:
        warn_of_versions()
    assert lines == []


def test_another_version_that_lacks_a_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tested one would be: an override of what is not there would never be called."""
    monkeypatch.setattr(faust, "__version__", "0.99.0")
    monkeypatch.delattr(Consumer, "_drain_messages")
    with pytest.raises(ImportError, match=r"changed Consumer\._drain_messages: install faust-streaming 0\.15\.3"):
        check_faust()


def test_versions_are_those_that_get_installed() -> None:
    """What was tested is what the project asks for, so that an upgrade has to look at the transport."""
    wanted = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["app"]
    assert {f"{name}=={expected}" for name, _, expected in VERSIONS} <= {one.partition("[")[0] for one in wanted}


PARTS = sorted({**OVERRIDDEN, **CALLED}, key=lambda part: (part[0].__name__, part[1]))


@pytest.mark.parametrize(("owner", "name"), PARTS)
def test_changed_part_is_refused(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """A part that takes something else is named, and so are the versions in which it does not."""
    monkeypatch.setattr(owner, name, lambda self, something, new: None)  # noqa: ARG005
    said = rf"changed {owner.__name__}\.{name}: install faust-streaming 0\.15\.3 and aiokafka 0\.14\.0"
    with pytest.raises(ImportError, match=said):
        check_faust()


def test_missing_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is gone is named; an override of it would never be called."""
    monkeypatch.delattr(Consumer, "_drain_messages")
    with pytest.raises(ImportError, match=r"changed Consumer\._drain_messages: install faust-streaming 0\.15\.3"):
        check_faust()


@pytest.mark.parametrize(
    "own",
    [PausingListener, ConsumerThread, BatchConsumer, AssignedConductor, DurableProducer, BatchTransport, BatchApp],
)
def test_every_override_is_among_the_parts_that_are_checked(own: type) -> None:
    """Whatever one of the transport's classes has by the same name as the class of Faust's below it."""
    bases = own.__mro__[1:]
    names = {name for name in vars(own) if any(name in vars(base) for base in bases)} - {"logger", "_abc_impl"}
    checked = {name for owner, name in OVERRIDDEN if owner in bases}
    assert {name for name in names if not name.startswith("__")} == checked


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in ATTRIBUTES.items() for name in names])
def test_missing_attribute_is_refused(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """An attribute that is called otherwise would be set in vain, or missing when it is wanted."""
    monkeypatch.setitem(ATTRIBUTES, owner, [f"{name}_of_old"])
    with pytest.raises(ImportError, match=rf"changed {owner.__name__}\.{name}_of_old: install faust-streaming"):
        check_faust()


def test_every_private_part_that_is_used_is_checked() -> None:
    """By the source: what of libraries the transport gets, sets and calls is in a table."""
    assert {"_tp_index", "_stopped", "_fetcher", "_isolation_level"} <= used([transport, thread_module])
    assert used([transport, thread_module]) <= named(OVERRIDDEN, CALLED, ATTRIBUTES)


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
                    seen.setdefault(records.generations[tp], []).extend(record.offset for record in brought)

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
    """Return a consumer that talks to nobody."""
    alone = object.__new__(BatchConsumer)
    alone.durable, alone._passed, alone._pressure = {}, {}, {}
    return alone
