"""Mirrors on brokers in memory, with real partitions and stores: what they follow, wait for and tell."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import AsyncMock, create_autospec

import pytest
from aiokafka import TopicPartition

from tests.app.conftest import until
from tests.app.segments.mirror.memory_kafka import MemoryKafka, MemoryStream
from tokenmill.app.kafka.cluster import NO_LEADER
from tokenmill.app.kafka.control_log import skip_request_record
from tokenmill.app.segments import mirror as mirror_module
from tokenmill.app.segments.following import bring_stream
from tokenmill.app.segments.mirror import CopyMeasure, Mirror, MirroredStream, StreamFinder, StreamFlow
from tokenmill.app.segments.token_partition import TokenPartition
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.eras import Era
from tokenmill.errors import BrokerError, DamagedError, GapError, InputError, MovedError, SettingsError, TopicError
from tokenmill.store import EraWriter, Store, open_eras, open_partition

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
    """Return brokers in memory, which all that mirrors speaks to; nothing waits for long."""
    kafka = MemoryKafka()
    kafka.install(monkeypatch)
    for name in (
        *("mirror.FIRST_PAUSE", "mirror.CHECK_SECONDS", "mirror.LOOK_SECONDS", "era_bringing.LOOK_SECONDS"),
        *("token_partition.COMMIT_SECONDS", "following.GAP_SECONDS", "following.LONGEST_GAP_SECONDS"),
    ):
        monkeypatch.setattr(f"tokenmill.app.segments.{name}", 0.0 if "COMMIT" in name else 0.001)
    return kafka


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        tokenizer="bytes", sequence_length=3, segment_blocks=4, splits={"all": 1000}, store=tmp_path / "store",
        metrics_port=0, wait_seconds=0.01,
    )  # fmt: skip


@pytest.fixture
def stream(kafka: MemoryKafka, settings: Settings) -> MemoryStream:
    return MemoryStream(kafka, settings, [12, 6])


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store.open_or_create(settings.store)


def stored(store: Store, stream: MemoryStream) -> list[int]:
    return [open_partition(store.path, stream.name, number).blocks for number in (0, 1)]


@dataclass
class Following:
    """A flow of a stream that runs until the block's end."""

    store: Store
    stream: MemoryStream
    flow: StreamFlow = field(init=False)

    async def __aenter__(self) -> Self:
        self.flow = StreamFlow(self.stream.settings, self.store, self.stream.settled, range(2))
        await bring_stream(self.store, self.stream.settled)
        self.task = asyncio.create_task(self.flow.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        assert not self.flow.partitions
        assert not self.flow.reached

    async def have(self, *blocks: int) -> None:
        await until(lambda: stored(self.store, self.stream) == list(blocks), self.task)


@pytest.fixture
def flow(store: Store, stream: MemoryStream) -> StreamFlow:
    return StreamFlow(stream.settings, store, stream.settled, range(2))


@pytest.fixture
def following(store: Store, stream: MemoryStream) -> Following:
    return Following(store, stream)


async def test_blocks_are_appended_as_they_come(stream: MemoryStream, following: Following) -> None:
    stream.send(0, 3)
    async with following:
        await following.have(3, 0)
        stream.send(1, 6)
        stream.send(0, 12)
        await following.have(12, 6)
        flow = following.flow
        await until(lambda: flow.reached == dict(zip(flow.topics, (12, 6), strict=True)))
        assert flow.ends() == flow.reached
        assert (flow.connected, stream.kafka.clients != []) == (True, True)
        assert [flow.has_reached(tp, end) for tp in flow.topics for end in (6, 7, 12, 13)] == [
            True, True, True, False, True, False, False, False,
        ]  # fmt: skip
    assert (flow.connected, dict(flow.ends()), stream.kafka.clients) == (False, {}, [])
    assert not any(flow.has_reached(tp, 0) for tp in flow.topics)


async def test_a_change_of_leader_is_looked_at_anew(
    stream: MemoryStream, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that came with the change is appended: the new leader may have lost the log's end. Then all goes on."""
    fed = create_autospec(TokenPartition.feed, side_effect=TokenPartition.feed)
    monkeypatch.setattr(TokenPartition, "feed", fed)
    stream.send(0, 4)
    async with following:
        await following.have(4, 0)
        first = list(following.flow.partitions.values())
        fed.reset_mock()
        stream.kafka.leaders[following.flow.topics[0]] = 1
        stream.send(0, 8)
        await following.have(8, 0)
        assert fed.call_args_list
        assert not any(call.args[0] in first for call in fed.call_args_list)  # a new start, with its look at the store
        assert not following.task.done()


async def test_a_change_of_leader_stops_what_was_fetched_before_it_is_fed(store: Store, stream: MemoryStream) -> None:
    flow = StreamFlow(stream.settings, store, stream.settled, [0])
    (tp,) = flow.topics
    async with stream.kafka.consumer(stream.settings) as client:
        flow._leaders = {tp: 0}
        flow._require_leader(client, tp)
        stream.kafka.leaders[tp] = 1
        with pytest.raises(MovedError, match=r"the leader of tokens.* changed"):
            flow._require_leader(client, tp)
        for unknown in (NO_LEADER, None):  # it was not known before: then this is the one that was looked at
            flow._leaders = {tp: unknown}
            flow._require_leader(client, tp)
            assert flow._leaders == {tp: 1}
        stream.kafka.leaders[tp] = NO_LEADER
        with pytest.raises(MovedError):
            flow._require_leader(client, tp)


async def test_nothing_is_fetched_before_a_partition_knows_its_place(
    stream: MemoryStream, following: Following
) -> None:
    stream.send(0, 6)
    async with following:
        await following.have(6, 0)
    stream.send(0, 8)
    async with following:
        await following.have(8, 0)
        (client,) = (client for client in stream.kafka.clients if len(client.places) == 2)
        tp = following.flow.topics[0]
        assert [what for what, told in client.told if told == tp] == ["pause", "seek", "seek", "resume"]
    assert await following.flow._start_partition(tp, 0) is None  # nobody is there to seek


@pytest.mark.parametrize("error", [BrokerError("away"), MovedError("moved"), OSError("disk")])
async def test_what_passes_is_started_over(flow: StreamFlow, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    sleep = AsyncMock(side_effect=[None] * 4 + [asyncio.CancelledError])
    monkeypatch.setattr(flow, "_run", AsyncMock(side_effect=error))
    monkeypatch.setattr(mirror_module, "FIRST_PAUSE", 2.0)
    monkeypatch.setattr("tokenmill.app.segments.mirror.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await flow.run()
    assert [call.args for call in sleep.call_args_list] == [(2.0,), (4.0,), (8.0,), (10.0,), (10.0,)]


async def test_what_does_not_pass_ends_the_flow(flow: StreamFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_run", AsyncMock(side_effect=SettingsError("wrong")))
    with pytest.raises(SettingsError):
        await flow.run()


async def test_a_partitions_failure_starts_all_over(stream: MemoryStream, following: Following) -> None:
    stream.send(0, 2)
    async with following:
        await following.have(2, 0)
        first = following.flow.partitions
        following.flow._fail(OSError("the disk"))
        following.flow._fail(OSError("once is enough"))
        await until(lambda: following.flow.partitions is not first and bool(following.flow.reached), following.task)
        stream.send(0, 4)
        await following.have(4, 0)


async def test_a_halted_partition_stands_alone(stream: MemoryStream, following: Following) -> None:
    stream.send(0, 2)
    stream.kafka.append(stream.stream.tokens_topic, 0, b"nobody's")
    stream.send(1, 6)
    async with following:
        await following.have(2, 6)
        one, other = following.flow.topics
        await until(lambda: following.flow.problem(one) is not None)
        assert isinstance(following.flow.problem(one), DamagedError)
        assert following.flow.problem(other) is None
        assert following.flow.has_reached(one, 3)
        assert not following.flow.has_reached(other, 7)


async def test_a_missing_block_is_a_problem_once_it_was_looked_for(stream: MemoryStream, following: Following) -> None:
    stream.send(0, 2)
    stream.send(0, 6, first=4)
    async with following:
        await until(lambda: following.flow.problem(following.flow.topics[0]) is not None, following.task)
        found = following.flow.problem(following.flow.topics[0])
        assert isinstance(found, GapError)
        assert "start one, or wait" in str(found)
        assert following.flow.has_reached(following.flow.topics[0], 4)
        stream.send(0, 6, first=2)
        await following.have(6, 0)
        await until(lambda: following.flow.problem(following.flow.topics[0]) is None, following.task)


def held_up(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, concerned: Callable[..., bool] = lambda *_: True
) -> asyncio.Event:
    """Hold up those calls of a method whose arguments are concerned, until the event is set."""
    event, real = asyncio.Event(), getattr(owner, name)

    async def waiting(*arguments: Any) -> None:
        if concerned(*arguments):
            await event.wait()
        await real(*arguments)

    monkeypatch.setattr(owner, name, waiting)
    return event


@pytest.mark.parametrize("what", ["the head of a partition", "eras"])
async def test_once_waits_for_the_head_of_every_partition_and_for_the_eras(
    store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    stream.send(0, 8)
    stream.send(1, 5)
    stream.close_era()
    mirror = Mirror(stream.settings, store, once=True)
    if what == "eras":
        held = held_up(monkeypatch, mirror._bringer, "_step")
    else:
        held = held_up(monkeypatch, TokenPartition, "feed", lambda partition, _: partition.tp.partition == 1)
    run = asyncio.create_task(mirror.run())
    await until(lambda: store_has(store, stream, 0, 8), run)
    for _ in range(50):
        await asyncio.sleep(0.001)  # everything goes on that can
    assert not run.done()
    held.set()
    await run
    assert stored(store, stream) == [8, 5]
    assert open_eras(store.path, stream.name).eras == 1
    (behind,) = mirror.behind
    assert (behind.blocks, behind.eras, behind.stored, behind.trainable, behind.stopped_by) == (0, 0, 13, 1, ())
    assert not mirror.problems


def store_has(store: Store, stream: MemoryStream, partition: int, blocks: int) -> bool:
    """Return whether a partition of the store has as many blocks; the store may not know the stream yet."""
    known = (store.path / stream.name / "stream.json").exists()
    return known and open_partition(store.path, stream.name, partition).blocks == blocks


async def test_once_tells_of_problems(store: Store, stream: MemoryStream) -> None:
    stream.send(0, 2)
    stream.send(0, 6, first=4)
    mirror = Mirror(stream.settings, store, once=True)
    await mirror.run()
    assert [type(problem) for problem in mirror.problems] == [GapError]
    (behind,) = mirror.behind
    assert (len(behind.stopped_by), behind.stored) == (1, 2)


@pytest.mark.needs("minutes")
async def test_a_mirror_follows_new_streams_and_partitions(store: Store, stream: MemoryStream) -> None:
    stream.kafka.logs.pop(TopicPartition(stream.stream.tokens_topic, 1))
    stream.send(0, 4)
    seen: list[int] = []
    mirror = Mirror(stream.settings, store, progress=lambda behind: seen.append(sum(one.blocks for one in behind)))
    run = asyncio.create_task(mirror.run())
    await until(lambda: store_has(store, stream, 0, 4), run)
    stream.kafka.logs[TopicPartition(stream.stream.tokens_topic, 1)] = []
    stream.send(1, 6)
    await until(lambda: store_has(store, stream, 1, 6), run)
    other = MemoryStream(stream.kafka, stream.settings.model_copy(update={"stream_suffix": "-v2"}), [3])
    other.send(0, 3)
    await until(lambda: store_has(store, other, 0, 3), run)
    await until(lambda: seen[-1:] == [0] and len(mirror.behind) == 2, run)
    run.cancel()
    await asyncio.wait({run})
    assert stream.kafka.clients == []


async def test_a_named_stream_is_the_only_one(stream: MemoryStream) -> None:
    MemoryStream(stream.kafka, stream.settings.model_copy(update={"stream_suffix": "-v2"}), [1])
    async with stream.kafka.consumer(stream.settings) as client:
        finder = StreamFinder([stream.name, "missing"])
        ((settled, partitions),) = await finder.look(client)
        assert (settled.stream, partitions, finder.missing) == (stream.stream, range(2), ["missing"])
        assert await finder.look(client) == []
        stream.kafka.logs[TopicPartition(stream.stream.tokens_topic, 2)] = []
        ((_, partitions),) = await finder.look(client)
        assert partitions == range(2, 3)
        every = StreamFinder()
        assert len(await every.look(client)) == 2
        assert every.missing == []


async def test_what_a_store_lacks_is_counted(store: Store, stream: MemoryStream, flow: StreamFlow) -> None:
    """By the last message of each partition, which is read only where something is new that the flow has not read."""
    await bring_stream(store, stream.settled)
    stream.send(0, 3)
    measure = CopyMeasure(store.path, stream.name)
    async with stream.kafka.consumer(stream.settings) as client:
        await flow.look(client)
        assert flow.heads == {flow.topics[0]: 3}
        found = measure.take([flow])
        assert (found.blocks, found.bytes, found.stored) == (3, 3 * stream.recipe.block_bytes, 0)
        looks = len(client.told)
        await flow.look(client)
        assert len(client.told) == looks
        stream.send(0, 2, first=1)  # a late writer's message does not lower the head
        stream.send(1, 2)
        flow.reached[flow.topics[1]] = 2
        await flow.look(client)
        assert flow.heads == {flow.topics[0]: 3}
        assert {tp for what, tp in client.told[looks:] if what == "seek"} == {flow.topics[0]}


async def test_a_mirror_that_is_done_has_closed_everything_and_looked_at_the_end(
    store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "LOOK_SECONDS", 3600)
    stream.send(0, 5)
    stream.close_era()
    stream.send(0, 7)
    seen: list[int] = []
    mirror = Mirror(stream.settings, store, once=True, progress=lambda behind: seen.append(behind[0].stored))
    await mirror.run()
    EraWriter.open(store, stream.name).close()
    (behind,) = mirror.behind
    assert (behind.stored, behind.eras, behind.trainable, seen[-1]) == (7, 0, 1, 7)
    assert stream.kafka.clients == []


async def test_once_ends_where_a_stream_is_missing(kafka: MemoryKafka, settings: Settings, store: Store) -> None:
    for names, missing in ((["other"], "other"), ([], "a stream"), (["begun"], "begun"), ([], "begun")):
        if missing == "begun":
            kafka.logs[TopicPartition("control.begun", 0)] = []
        with pytest.raises(TopicError, match=f"{missing} is not settled on these brokers"):
            await Mirror(settings, store, names, once=True).run()
    stream = MemoryStream(kafka, settings, [4])
    stream.send(0, 4)
    with pytest.raises(TopicError, match="other is not settled"):
        await Mirror(settings, store, [stream.name, "other"], once=True).run()


async def test_once_ends_with_the_streams_that_there_were(
    store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is settled meanwhile is another run's."""
    stream.send(0, 4)
    mirror = Mirror(stream.settings, store, once=True)
    held = held_up(monkeypatch, mirror._bringer, "_step")
    real, looks = mirror._see, 0

    async def see(client: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            MemoryStream(stream.kafka, stream.settings.model_copy(update={"stream_suffix": "-v2"}), [1])
        if looks == 4:
            held.set()
        await real(client)

    monkeypatch.setattr(mirror, "_see", see)
    await mirror.run()
    assert [behind.stream for behind in mirror.behind] == [stream.name]


async def test_eras_that_cannot_come_are_a_problem_and_no_reason_to_wait(store: Store, stream: MemoryStream) -> None:
    stream.send(0, 2)
    stream.close_era()
    await Mirror(stream.settings, store, once=True).run()
    del stream.kafka.logs[stream.control][1:]
    stream.send(0, 4)
    mirror = Mirror(stream.settings, store, once=True)
    await mirror.run()
    assert [type(problem).__name__ for problem in mirror.problems] == ["DifferenceError"]
    assert open_partition(store.path, stream.name, 0).blocks == 4


async def test_what_people_say_meanwhile_is_heard(store: Store, stream: MemoryStream) -> None:
    stream.send(0, 1)
    mirror = Mirror(stream.settings, store)
    run = asyncio.create_task(mirror.run())
    await until(lambda: store_has(store, stream, 0, 1), run)
    key, value = skip_request_record(0, 5)
    stream.kafka.append(stream.stream.control_topic, 0, value, key=key)
    await until(lambda: mirror._settled[0].control.skip_requests == {0: {5}}, run)
    run.cancel()
    await asyncio.wait({run})


async def test_a_mirror_that_keeps_for_states_refuses_a_wrong_one(
    store: Store, stream: MemoryStream, tmp_path: Path
) -> None:
    """At its start, though it would run for ever: whoever named it is there to hear it."""
    (tmp_path / "state.json").write_text("no state")
    with pytest.raises(InputError, match="cannot be read as a state"):
        await Mirror(stream.settings, store, keep_from=[tmp_path / "state.json"]).run()


async def test_a_mirror_is_ready_while_any_stream_is_connected(
    store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(stream.settings, store)
    assert mirror._why_not_ready() == "no stream is settled yet"
    flows = [SimpleNamespace(connected=False, partitions={}, ends=dict) for _ in range(2)]
    mirror._flows = {"a": flows[:1], "b": flows[1:]}  # type: ignore[dict-item]
    assert mirror._why_not_ready() == "no broker is connected"
    flows[1].connected = True
    assert mirror._why_not_ready() is None
    seen: list[bool] = []
    monkeypatch.setattr(mirror_module, "measure", lambda *_, reached: seen.append(reached))
    for since in (None, 5.0):
        monkeypatch.setattr(mirror_module, "CONTACT", SimpleNamespace(away_since=since))
        mirror._measure()
    assert seen == [True, False]


async def test_what_is_behind_is_measured(store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(mirror_module.log, "warning", lambda event, **more: said.append((event, more)), raising=False)
    stream.send(0, 3)
    mirror = Mirror(stream.settings, store, [stream.name, "other"])
    async with stream.kafka.consumer(stream.settings) as client, asyncio.TaskGroup() as group:
        monkeypatch.setattr(StreamFlow, "run", lambda _: asyncio.sleep(0))
        for _ in range(3):
            await mirror._find(client, group)
        stream.close_era()
        await mirror._see(client)
        stream.kafka.logs[TopicPartition(stream.stream.tokens_topic, 2)] = []
        await mirror._find(client, group)
    assert said == [("no mill has settled these streams yet", {"streams": ["other"]})]
    assert [flow.topics[0].partition for flow in mirror._all_flows()] == [0, 2]
    name = stream.name
    assert metrics.BLOCKS_BEHIND.labels(name)._value.get() == 3
    assert metrics.BYTES_BEHIND.labels(name)._value.get() == 3 * stream.recipe.block_bytes
    assert metrics.ERAS_BEHIND.labels(name)._value.get() == 0  # the store does not know the era yet
    told = MirroredStream(name, blocks=1, bytes=2, eras=7, stored=0, trainable=0, stopped_by=())
    mirror._measures[name] = SimpleNamespace(take=lambda *_: told)  # type: ignore[assignment]
    mirror._take()
    assert metrics.ERAS_BEHIND.labels(name)._value.get() == 7


async def test_a_measure_keeps_what_a_partition_had_while_it_starts_anew(
    store: Store, stream: MemoryStream, flow: StreamFlow
) -> None:
    await bring_stream(store, stream.settled)
    for first, second in ((2, 0), (4, 3), (6, 3), (8, 6)):
        stream.send(0, first)
        stream.send(1, second)
        stream.close_era()
    with EraWriter.open(store, stream.name) as writer:
        measure = CopyMeasure(store.path, stream.name)
        records = stream.kafka.logs[stream.control][1:]
        writer.append([(Era.unpack(record.value), record.offset) for record in records])

    def partition(block: int | None, **why: str) -> Any:
        return SimpleNamespace(status=lambda: {"block": block}, halted=why.get("halted"), waiting=why.get("waiting"))

    flow.heads = dict(zip(flow.topics, (8, 6), strict=True))
    expected = [((2, 0), 12, 1), ((4, 2), 8, 1), ((4, 3), 7, 2), ((6, 3), 5, 3), ((None, None), 5, 3), ((9, 6), 0, 4)]
    for blocks, behind, trainable in expected:
        flow.partitions = {tp: partition(block) for tp, block in zip(flow.topics, blocks, strict=True)}
        found = measure.take([flow])
        assert (found.blocks, found.trainable, found.eras) == (behind, trainable, 4 - trainable)
        assert found.stopped_by == ()
    flow.partitions = dict(zip(flow.topics, (partition(1, halted="a"), partition(1, waiting="b")), strict=True))
    assert measure.take([flow]).stopped_by == ("a", "b")


async def test_another_streams_message_is_no_head(stream: MemoryStream, flow: StreamFlow) -> None:
    other = MemoryStream(MemoryKafka(), stream.settings.model_copy(update={"sequence_length": 4}), [3])
    stream.kafka.send(flow.topics[0].topic, 0, other.messages[0])
    async with stream.kafka.consumer(stream.settings) as client:
        await flow.look(client)
        assert flow.heads == {}
        stream.kafka.append(flow.topics[0].topic, flow.topics[0].partition, b"foreign")
        await flow.look(client)
        assert flow.heads == {}
        assert {tp for what, tp in client.told if what == "seek"} == {flow.topics[0]}
