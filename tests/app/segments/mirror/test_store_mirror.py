"""A whole mirror on brokers in memory: what it waits for, what it tells, and that it leaves nothing open."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryKafka, MemoryStream
from tests.app.segments.mirror.test_stream_flow import held_up, store_has, until
from tokenmill.app.kafka.control_log import skip_request_record
from tokenmill.app.segments import mirror as mirror_module
from tokenmill.app.segments.following import bring_stream
from tokenmill.app.segments.mirror import CopyMeasure, Mirror, MirroredStream, StreamFlow
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.eras import Era
from tokenmill.errors import InputError, TopicError
from tokenmill.store import EraWriter, Store, open_partition


async def mirrored(mirror: Mirror) -> None:
    async with asyncio.timeout(20):
        await mirror.run()


async def test_a_mirror_that_is_done_has_closed_everything(store: Store, stream: MemoryStream) -> None:
    stream.send(0, 5)
    stream.close_era()
    stream.send(0, 7)
    seen: list[int] = []
    mirror = Mirror(stream.settings, store, once=True, progress=lambda behind: seen.append(behind[0].stored))
    await mirrored(mirror)
    EraWriter.open(store, stream.stream.name).close()
    (behind,) = mirror.behind
    assert (behind.stored, behind.eras, behind.trainable, seen[-1]) == (7, 0, 1, 7)
    assert stream.kafka.clients == []


async def test_the_last_look_is_taken_at_the_end(
    store: Store, stream: MemoryStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "LOOK_SECONDS", 3600)
    stream.send(0, 7)
    mirror = Mirror(stream.settings, store, once=True)
    await mirrored(mirror)
    assert [behind.stored for behind in mirror.behind] == [7]


async def test_once_ends_where_a_stream_is_missing(kafka: MemoryKafka, settings: Settings, store: Store) -> None:
    for names, missing in ((["other"], "other"), ([], "a stream"), (["begun"], "begun"), ([], "begun")):
        if missing == "begun":
            kafka.logs[TopicPartition("control.begun", 0)] = []
        with pytest.raises(TopicError, match=f"{missing} is not settled on these brokers"):
            await mirrored(Mirror(settings, store, names, once=True))
    stream = MemoryStream(kafka, settings, [4])
    stream.send(0, 4)
    with pytest.raises(TopicError, match="other is not settled"):
        await mirrored(Mirror(settings, store, [stream.stream.name, "other"], once=True))


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
    await mirrored(mirror)
    assert [behind.stream for behind in mirror.behind] == [stream.stream.name]


async def test_eras_that_cannot_come_are_a_problem_and_no_reason_to_wait(store: Store, stream: MemoryStream) -> None:
    stream.send(0, 2)
    stream.close_era()
    await mirrored(Mirror(stream.settings, store, once=True))
    control = TopicPartition(stream.stream.control_topic, 0)
    stream.kafka.logs[control] = stream.kafka.logs[control][:1]
    stream.send(0, 4)
    mirror = Mirror(stream.settings, store, once=True)
    await mirrored(mirror)
    assert [type(problem).__name__ for problem in mirror.problems] == ["DifferenceError"]
    assert open_partition(store.path, stream.stream.name, 0).blocks == 4


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
        await mirrored(Mirror(stream.settings, store, keep_from=[tmp_path / "state.json"]))


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
    mirror = Mirror(stream.settings, store, [stream.stream.name, "other"])
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
    name = stream.stream.name
    assert metrics.BLOCKS_BEHIND.labels(name)._value.get() == 3
    assert metrics.BYTES_BEHIND.labels(name)._value.get() == 3 * stream.recipe.block_bytes
    assert metrics.ERAS_BEHIND.labels(name)._value.get() == 0  # the store does not know the era yet
    told = MirroredStream(name, blocks=1, bytes=2, eras=7, stored=0, trainable=0, stopped_by=())
    mirror._measures[name] = SimpleNamespace(take=lambda *_: told)  # type: ignore[assignment]
    mirror._take()
    assert metrics.ERAS_BEHIND.labels(name)._value.get() == 7


async def test_a_measure_keeps_what_a_partition_had_while_it_starts_anew(store: Store, stream: MemoryStream) -> None:
    await bring_stream(store, stream.settled)
    for first, second in ((2, 0), (4, 3), (6, 3), (8, 6)):
        stream.send(0, first)
        stream.send(1, second)
        stream.close_era()
    flow = StreamFlow(stream.settings, store, stream.settled, range(2))
    with EraWriter.open(store, stream.stream.name) as writer:
        measure = CopyMeasure(store.path, stream.stream.name)
        records = stream.kafka.logs[TopicPartition(stream.stream.control_topic, 0)][1:]
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


async def test_another_streams_message_is_no_head(store: Store, stream: MemoryStream) -> None:
    flow = StreamFlow(stream.settings, store, stream.settled, range(2))
    other = MemoryStream(MemoryKafka(), stream.settings.model_copy(update={"sequence_length": 4}), [3])
    stream.kafka.send(flow.topics[0].topic, 0, other.messages[0])
    async with stream.kafka.consumer(stream.settings) as client:
        await flow.look(client)
        assert flow.heads == {}
        stream.kafka.append(flow.topics[0].topic, flow.topics[0].partition, b"foreign")
        await flow.look(client)
        assert flow.heads == {}
        assert {tp for tp, _ in client.seeks} == {flow.topics[0]}
