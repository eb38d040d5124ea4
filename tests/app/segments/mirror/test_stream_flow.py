"""A stream's partitions on their way into a mirror's store: real partitions and stores, brokers in memory."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryStream
from tokenmill.app.kafka.cluster import NO_LEADER
from tokenmill.app.segments import mirror as mirror_module
from tokenmill.app.segments.following import bring_stream
from tokenmill.app.segments.mirror import CopyMeasure, Mirror, StreamFinder, StreamFlow
from tokenmill.app.segments.token_partition import TokenPartition
from tokenmill.errors import BrokerError, DamagedError, GapError, MovedError, SettingsError
from tokenmill.store import Store, open_eras, open_partition

pytestmark = pytest.mark.timeout(60)


def stored(store: Store, stream: MemoryStream) -> list[int]:
    return [open_partition(store.path, stream.stream.name, number).blocks for number in (0, 1)]


async def until(condition: Callable[[], bool], *tasks: "asyncio.Task[Any]") -> None:
    async with asyncio.timeout(20):
        while not condition():
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
            await asyncio.sleep(0.001)


async def settle(steps: int = 50) -> None:
    for _ in range(steps):
        await asyncio.sleep(0.001)


class Following:
    """A flow of a stream that runs until the block's end."""

    flow: StreamFlow

    def __init__(self, store: Store, stream: MemoryStream) -> None:
        self.store, self.stream = store, stream

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
    fed: list[TokenPartition] = []
    real = TokenPartition.feed

    async def feed(partition: TokenPartition, batch: Any) -> None:
        fed.append(partition)
        await real(partition, batch)

    monkeypatch.setattr(TokenPartition, "feed", feed)
    stream.send(0, 4)
    async with following:
        await following.have(4, 0)
        first = following.flow.partitions
        tp = following.flow.topics[0]
        fed.clear()
        stream.kafka.leaders[tp] = 1
        stream.send(0, 8)
        await following.have(8, 0)
        assert fed
        assert not set(fed) & set(first.values())  # a new start, with its look at what the store holds
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
async def test_what_passes_is_started_over(
    store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep
    flow = StreamFlow(stream.settings, store, stream.settled, range(2))

    async def fails() -> None:
        raise error

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError
        await real_sleep(0)

    monkeypatch.setattr(flow, "_run", fails)
    monkeypatch.setattr(mirror_module, "FIRST_PAUSE", 2.0)
    monkeypatch.setattr("tokenmill.app.segments.mirror.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await flow.run()
    assert pauses == [2.0, 4.0, 8.0, 10.0, 10.0]


async def test_what_does_not_pass_ends_the_flow(store: Store, stream: MemoryStream) -> None:
    flow = StreamFlow(stream.settings, store, stream.settled, range(2))

    async def fails() -> None:
        raise SettingsError("wrong")

    flow._run = fails  # type: ignore[method-assign]
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
    await settle()
    assert not run.done()
    held.set()
    async with asyncio.timeout(20):
        await run
    assert stored(store, stream) == [8, 5]
    assert open_eras(store.path, stream.stream.name).eras == 1
    (behind,) = mirror.behind
    assert (behind.blocks, behind.eras, behind.stored, behind.trainable, behind.stopped_by) == (0, 0, 13, 1, ())
    assert not mirror.problems


def store_has(store: Store, stream: MemoryStream, partition: int, blocks: int) -> bool:
    """Return whether a partition of the store has as many blocks; the store may not know the stream yet."""
    known = (store.path / stream.stream.name / "stream.json").exists()
    return known and open_partition(store.path, stream.stream.name, partition).blocks == blocks


async def test_once_tells_of_problems(store: Store, stream: MemoryStream) -> None:
    stream.send(0, 2)
    stream.send(0, 6, first=4)
    mirror = Mirror(stream.settings, store, once=True)
    async with asyncio.timeout(20):
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
        finder = StreamFinder([stream.stream.name, "missing"])
        ((settled, partitions),) = await finder.look(client)
        assert (settled.stream, partitions, finder.missing) == (stream.stream, range(2), ["missing"])
        assert await finder.look(client) == []
        stream.kafka.logs[TopicPartition(stream.stream.tokens_topic, 2)] = []
        ((_, partitions),) = await finder.look(client)
        assert partitions == range(2, 3)
        every = StreamFinder()
        assert len(await every.look(client)) == 2
        assert every.missing == []


async def test_what_a_store_lacks_is_counted(store: Store, stream: MemoryStream) -> None:
    """By the last message of each partition, which is read only where something is new that the flow has not read."""
    await bring_stream(store, stream.settled)
    stream.send(0, 3)
    flow = StreamFlow(stream.settings, store, stream.settled, range(2))
    measure = CopyMeasure(store.path, stream.stream.name)
    async with stream.kafka.consumer(stream.settings) as client:
        await flow.look(client)
        assert flow.heads == {flow.topics[0]: 3}
        found = measure.take([flow])
        assert (found.blocks, found.bytes, found.stored) == (3, 3 * stream.recipe.block_bytes, 0)
        looks = len(client.seeks)
        await flow.look(client)
        assert len(client.seeks) == looks
        stream.send(0, 2, first=1)  # a late writer's message does not lower the head
        stream.send(1, 2)
        flow.reached[flow.topics[1]] = 2
        await flow.look(client)
        assert flow.heads == {flow.topics[0]: 3}
        assert {tp for tp, _ in client.seeks[looks:]} == {flow.topics[0]}
