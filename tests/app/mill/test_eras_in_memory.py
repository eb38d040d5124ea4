"""Closing and bringing eras, on brokers in memory: what is written in which order, by whom, and when nobody does."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryClient, MemoryKafka, MemoryStream
from tokenmill.app.kafka.control_log import IgnoreList, record_hash
from tokenmill.app.kafka.control_topic import read_eras
from tokenmill.app.mill import era_closing as closing
from tokenmill.app.mill.era_closing import EraCloser, EraKeeper, Extents
from tokenmill.app.segments import era_bringing as bringing
from tokenmill.app.segments.era_bringing import EraBringer
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.eras import Era, EraFollower, EraLog
from tokenmill.errors import DamagedError, DifferenceError, DiskError, LockedError, TokenMillError, TopicError
from tokenmill.reading import find_extent
from tokenmill.store import EraWriter, Store, StreamInfo, open_eras

NEVER = 3600.0


class Scene:
    """A stream of two partitions with no block on its topics yet, and a clock that stands still."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = MemoryKafka()
        self.settings = Settings(
            tokenizer="bytes", sequence_length=3, segment_blocks=4, splits={"all": 1000}, store=directory / "store",
            era_blocks=4, era_max_seconds=NEVER,
        )  # fmt: skip
        self.stream = MemoryStream(self.kafka, self.settings, [12, 6])
        self.settled = self.stream.settled
        self.client: Any = MemoryClient(self.kafka)
        self.control = self.stream.control
        self.now = 0.0
        self.fail: Exception | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: int(self.now * 1e9))
        monkeypatch.setattr(closing, "time", clock)

    async def write(self, topic: str, key: bytes, value: bytes) -> None:
        assert topic == self.control.topic
        if self.fail is not None:
            raise self.fail
        self.kafka.append(topic, 0, value, key=key)

    def closer(self, blocks: int = 4, seconds: float = NEVER) -> EraCloser:
        return EraCloser(self.settled, self.write, era_blocks=blocks, era_seconds=seconds)

    def store(self) -> Store:
        store = Store.open_or_create(self.settings.store)
        store.add_stream(StreamInfo.from_genesis(self.settled.genesis, self.settled.genesis.segment_blocks), b"{}")
        return store


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def stops(era: Era | None) -> list[int] | None:
    return None if era is None else [part.stop for part in era.ranges]


async def test_an_era_takes_what_all_partitions_hold_once_there_is_enough(scene: Scene) -> None:
    closer = scene.closer(blocks=4)
    found = []
    for first, second in ((0, 0), (3, 0), (3, 1), (3, 1), (6, 1), (7, 2)):
        scene.stream.send(0, first)
        scene.stream.send(1, second)
        found.append(stops(await closer.step(scene.client)))
    assert found == [None, None, [3, 1], None, None, [7, 2]]


async def test_a_late_era_is_closed_by_its_time(scene: Scene) -> None:
    closer = scene.closer(blocks=100, seconds=10)
    found = []
    times = (0, 50, 55, 64, 65, 66, 75, 76, 99, 101, 110, 111)
    sent = (0, 0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5)
    for scene.now, blocks in zip(times, sent, strict=True):
        scene.stream.send(0, blocks)
        found.append(stops(await closer.step(scene.client)))
    assert found == [None, None, None, None, [3], None, None, [4], None, None, None, [5]]


async def test_an_era_that_was_not_acknowledged_is_due_still(scene: Scene) -> None:
    closer = scene.closer(blocks=100, seconds=10)
    scene.stream.send(0, 2)
    assert await closer.step(scene.client) is None
    scene.now, scene.fail = 10.0, DiskError("no broker takes it")
    with pytest.raises(DiskError):
        await closer.step(scene.client)
    scene.fail = None
    assert stops(await closer.step(scene.client)) == [2]


async def test_an_era_that_another_closed_counts(scene: Scene) -> None:
    """It is read before anything is written: nobody writes a second one over the same blocks."""
    scene.stream.send(0, 4)
    one, other = scene.closer(), scene.closer()
    assert stops(await one.step(scene.client)) == [4]
    assert await other.step(scene.client) is None
    scene.stream.send(0, 9)
    assert stops(await other.step(scene.client)) == [9]
    assert await one.step(scene.client) is None


async def test_of_two_writers_at_once_one_counts(scene: Scene) -> None:
    scene.stream.send(0, 4)
    both_are_ready = asyncio.Barrier(2)

    async def write(topic: str, key: bytes, value: bytes) -> None:
        await both_are_ready.wait()
        await scene.write(topic, key, value)

    clients: list[Any] = [MemoryClient(scene.kafka) for _ in range(2)]
    writers = [EraCloser(scene.settled, write, era_blocks=4, era_seconds=NEVER) for _ in clients]
    written = await asyncio.gather(*map(EraCloser.step, writers, clients))
    assert None not in written
    assert await asyncio.gather(*map(EraCloser.step, writers, clients)) == [None, None]
    follower = EraFollower(scene.stream.name, scene.stream.recipe.fingerprint)
    (era,) = [era async for part in read_eras(scene.client, scene.control.topic, follower) for era, _ in part]
    assert era in written


async def test_the_end_marker_comes_after_the_last_blocks_and_nothing_after_it(scene: Scene) -> None:
    scene.stream.send(0, 1)
    closer = scene.closer(blocks=100)
    await closer.close(scene.client)
    assert closer.ended
    eras = [Era.unpack(record.value) for record in scene.kafka.logs[scene.control][1:]]
    assert [(era.blocks, era.end) for era in eras] == [(1, False), (0, True)]
    scene.stream.send(0, 9)
    assert await scene.closer(blocks=1).step(scene.client) is None


async def test_only_partitions_that_changed_are_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = IgnoreList()
    extents = Extents(scene.stream.stream.tokens_topic, scene.stream.recipe, ignored)
    looked: list[int] = []
    real = Extents._extent

    async def extent(self: Extents, client: Any, partition: TopicPartition, known: int) -> Any:
        looked.append(partition.partition)
        return await real(self, client, partition, known)

    monkeypatch.setattr(Extents, "_extent", extent)

    async def look() -> tuple[list[int], dict[int, int]]:
        looked.clear()
        await extents.look(scene.client, EraLog(scene.stream.recipe.fingerprint))
        return list(looked), {number: found.blocks for number, found in extents.found.items()}

    assert await look() == ([], {})
    scene.stream.send(0, 3)
    assert await look() == ([0], {0: 3})
    assert await look() == ([], {0: 3})
    scene.stream.send(1, 2)
    assert await look() == ([1], {0: 3, 1: 2})
    tokens = TopicPartition(scene.stream.stream.tokens_topic, 0)
    scene.kafka.append(tokens.topic, 0, b"foreign")
    assert await look() == ([0], {0: 3, 1: 2})
    ignored.add(0, 3, record_hash(scene.kafka.logs[tokens][3]))
    assert await look() == ([0], {0: 3, 1: 2})
    assert await look() == ([], {0: 3, 1: 2})
    with pytest.raises(TopicError):
        await Extents("missing", scene.stream.recipe, ignored).look(scene.client, EraLog(b""))


async def test_a_partition_that_contradicts_itself_keeps_its_extent_and_the_others_go_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(closing, "log", SimpleNamespace(warning=lambda _, **more: said.append(more["reason"])))
    reasons: dict[int, str] = {}

    async def find(logs: Any, recipe: Any, number: int, known: int) -> Any:
        if number in reasons:
            raise DamagedError("topic", reasons[number])
        return await find_extent(logs, recipe, number, known)

    monkeypatch.setattr(closing, "find_extent", find)
    extents = Extents(scene.stream.stream.tokens_topic, scene.stream.recipe, IgnoreList())
    steps: Sequence[tuple[int, str | None, int, int]] = (
        (2, None, 2, 0), (3, "one", 2, 1), (4, "one", 2, 1), (5, "two", 2, 2), (6, None, 6, 2), (7, "two", 6, 3),
    )  # fmt: skip
    for sent, reason, expected, count in steps:
        reasons.clear()
        if reason:
            reasons[0] = reason
        scene.stream.send(0, sent)
        scene.stream.send(1, sent - 1)
        await extents.look(scene.client, EraLog(scene.stream.recipe.fingerprint))
        assert {number: found.blocks for number, found in extents.found.items()} == {0: expected, 1: sent - 1}
        assert len(said) == count


def keeper(scene: Scene, owned: set[str]) -> EraKeeper:
    return EraKeeper(scene.settings, [scene.settled], owned.__contains__, scene.write)


async def test_a_keeper_closes_the_eras_of_what_it_owns(scene: Scene) -> None:
    owned: set[str] = set()
    one = keeper(scene, owned)
    name = scene.stream.name
    counted = metrics.ERAS.labels(name)._value.get()
    scene.stream.send(0, 4)
    await one._step(scene.client, scene.settled)
    assert len(scene.kafka.logs[scene.control]) == 1
    owned.add(scene.stream.stream.raw_topic)
    for _ in range(2):
        await one._step(scene.client, scene.settled)
        assert len(scene.kafka.logs[scene.control]) == 2
    assert metrics.ERAS.labels(name)._value.get() == counted + 1
    first = one._closers[name]
    await one._step(scene.client, scene.settled)
    assert one._closers[name] is first
    owned.clear()
    await one._step(scene.client, scene.settled)
    assert one._closers == {}


async def test_a_keeper_gives_a_stream_up_whose_control_topic_lost_an_era(scene: Scene) -> None:
    """Until the partition is assigned anew; its eras are no longer what it believes."""
    owned = {scene.stream.stream.raw_topic}
    one = keeper(scene, owned)
    for sent in (4, 8):
        scene.stream.send(0, sent)
        await one._step(scene.client, scene.settled)
    await one._step(scene.client, scene.settled)
    lost = scene.kafka.logs[scene.control]
    scene.kafka.logs[scene.control] = lost[:1]
    for _ in range(2):
        await one._step(scene.client, scene.settled)
    assert len(scene.kafka.logs[scene.control]) == 1
    assert one.halts == {scene.stream.name: DifferenceError.brief}
    scene.kafka.logs[scene.control] = list(lost)
    scene.stream.send(0, 12)
    await one._step(scene.client, scene.settled)
    assert scene.kafka.logs[scene.control] == lost
    scene.kafka.logs[scene.control] = lost[:1]
    owned.clear()
    await one._step(scene.client, scene.settled)
    owned.add(scene.stream.stream.raw_topic)
    await one._step(scene.client, scene.settled)
    assert len(scene.kafka.logs[scene.control]) == 2


async def test_a_keeper_does_not_swallow_what_nobody_expected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eras would just not be closed any more; the worker ends the process (`tests.app.worker.test_run`)."""
    error = RuntimeError("nobody expected it")
    monkeypatch.setattr(closing, "ask_repeatedly", AsyncMock(side_effect=error))
    with pytest.raises(RuntimeError) as raised:
        await keeper(scene, set()).run()
    assert raised.value is error


@pytest.mark.parametrize(("seconds", "pause"), [(NEVER, closing.LOOK_SECONDS), (0.4, 0.1)])
def test_a_keeper_looks_often_enough_for_the_shortest_eras(scene: Scene, seconds: float, pause: float) -> None:
    scene.settings = scene.settings.model_copy(update={"era_max_seconds": seconds})
    assert keeper(scene, set())._pause == pause


class Bringing:
    def __init__(self, scene: Scene) -> None:
        self.scene, self.owned = scene, {scene.stream.stream.tokens_topic}
        self.name = scene.stream.name
        self.store = scene.store()
        self.bringer = EraBringer([scene.settled], self.store, lambda topic: topic in self.owned)

    async def step(self) -> int:
        await self.bringer._step(self.scene.client, self.scene.settled)
        return open_eras(self.store.path, self.name).eras

    def close(self, *stops: int) -> None:
        for stop in stops:
            self.scene.stream.send(0, stop)
            self.scene.stream.close_era()


async def test_eras_are_brought_as_they_come(scene: Scene) -> None:
    bringing_ = Bringing(scene)
    assert await bringing_.step() == 0
    assert bringing_.bringer.looked == {bringing_.name}
    bringing_.close(2, 4, 6)
    assert await bringing_.step() == 3
    assert bringing_.bringer.eras == {bringing_.name: 3}
    bringing_.close(7)
    assert await bringing_.step() == 4
    with pytest.raises(LockedError):
        EraWriter.open(bringing_.store, bringing_.name)
    bringing_.bringer.close()
    EraWriter.open(bringing_.store, bringing_.name).close()
    again = Bringing(scene)
    bringing_.close(8)
    assert await again.step() == 5
    again.bringer.close()


async def test_another_owner_gets_the_files(scene: Scene) -> None:
    one = Bringing(scene)
    one.close(2)
    await one.step()
    assert one.bringer.eras == {one.name: 1}
    one.bringer.halts[one.name] = TokenMillError()
    one.owned.clear()
    await one.step()
    assert (one.bringer.eras, one.bringer.halts) == ({}, {})
    assert (one.name,) not in metrics.STORE_ERAS._metrics
    EraWriter.open(one.store, one.name).close()


async def test_what_heals_by_itself_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(bringing, "log", SimpleNamespace(warning=lambda event, **_: said.append(event)))
    one = Bringing(scene)
    one.close(2)
    with EraWriter.open(one.store, one.name):
        for _ in range(2):
            assert await one.step() == 0
    assert (said, one.bringer.looked, one.bringer.halts) == (["waiting for the eras' files"], set(), {})
    assert await one.step() == 1
    real, full = EraWriter.append, Mock(side_effect=DiskError("the disk is full"))
    monkeypatch.setattr(EraWriter, "append", full)
    one.close(4)
    assert await one.step() == 1
    assert one.bringer._open == {}
    monkeypatch.setattr(EraWriter, "append", real)
    assert await one.step() == 2
    assert one.bringer.halts == {}
    assert said == ["waiting for the eras' files"] * 2
    monkeypatch.setattr(EraWriter, "append", full)
    one.close(6)
    await one.step()
    assert said == ["waiting for the eras' files"] * 3


async def test_what_only_a_person_mends_halts_the_stream(scene: Scene) -> None:
    one = Bringing(scene)
    one.close(2, 4)
    assert await one.step() == 2
    lost = scene.kafka.logs[scene.control]
    scene.kafka.logs[scene.control] = lost[:1]
    await one.step()
    assert list(one.bringer.halts) == [one.name]
    EraWriter.open(one.store, one.name).close()
    scene.kafka.logs[scene.control] = lost
    one.close(6)
    assert await one.step() == 2


async def test_every_stream_is_looked_at_and_those_that_come_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Bringing(scene)
    step = AsyncMock()

    async def ask_repeatedly(_settings: Any, ask: Any, *_: Any, **__: Any) -> None:
        await ask(scene.client)
        other = MemoryStream(scene.kafka, scene.settings.model_copy(update={"stream_suffix": "-v2"}), [1])
        one.bringer._settled.append(other.settled)  # type: ignore[attr-defined]
        await ask(scene.client)

    monkeypatch.setattr(one.bringer, "_step", step)
    monkeypatch.setattr(bringing, "ask_repeatedly", ask_repeatedly)
    await asyncio.wait_for(one.bringer.run(scene.settings), 20)
    asked = [call.args[1].stream.name for call in step.call_args_list]
    assert asked == [one.name, one.name, f"{one.name}-v2"]
