"""Settling a stream and reading its control topic, on scripted clients."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tests.eras.histories import FINGERPRINT, next_era
from tests.mills import RAW, RECIPE
from tests.service import service_settings
from tokenmill.app.kafka import control_topic as module
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_log import ControlLog, skip_record
from tokenmill.app.kafka.control_topic import name_junk, read_eras, read_on, require_fingerprint, write_control
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.settings import Settings, Stream
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.documents import Record
from tokenmill.eras import ERA_KEY, Era, EraFollower
from tokenmill.errors import FingerprintError, MovedError
from tokenmill.recipe import GENESIS_KEY, Genesis

TOPIC = "control.raw-text.train"
NOW = complete(RECIPE, RAW, None)[0]
FIRST = Genesis("raw-text.train", RECIPE, (0,), 16)


class Log:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: list[tuple[bytes | None, bytes | None]]) -> None:
        self.records = records
        self.first = 0
        self.ranges: list[tuple[int, int]] = []
        monkeypatch.setattr(module, "offsets", self.offsets)
        monkeypatch.setattr(module, "read_range", self.read_range)
        monkeypatch.setattr(module, "_named", set())

    async def offsets(self, _client: object, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (self.first, len(self.records)))

    async def read_range(self, _client: object, _tp: object, start: int, end: int) -> AsyncIterator[Record]:
        self.ranges.append((start, end))
        for offset in range(start, end):
            yield Record(offset, 0, *self.records[offset])


async def test_junk_is_named_once_and_counted_and_what_is_right_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Log(monkeypatch, [(b"skip", b"junk"), (GENESIS_KEY, FIRST.pack()), (b"skip-request", b"[]"), (b"x", b"y")])
    before = metrics.CONTROL_JUNK.labels(TOPIC)._value.get()
    client: Any = object()
    with capture_logs() as said:
        for _ in range(3):
            control = ControlLog("raw-text.train")
            await read_on(client, {TOPIC: control})
            assert (control.genesis, control.junk) == (FIRST, 2)
    assert [(line["offset"], line["key"], line["topic"]) for line in said] == [
        (0, b"skip", TOPIC),
        (2, b"skip-request", TOPIC),
    ]
    assert all("let only mills" in line["advice"] for line in said)
    assert metrics.CONTROL_JUNK.labels(TOPIC)._value.get() == before + 2
    assert topic.ranges == [(0, 4)] * 3
    assert [line["log_level"] for line in said] == ["warning", "info"], "a command, which shows warnings, shows one"


def test_workers_of_one_supervisor_name_a_junk_record_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whichever of them finds it first, and however often they start again; and so many at most, all together."""
    with (tmp_path / "named").open("w+b") as shared, capture_logs() as said:
        monkeypatch.setenv(module.NAMED_VARIABLE, str(shared.fileno()))
        for _ in range(3):
            monkeypatch.setattr(module, "_named", set())  # as in a process that has just begun
            for offset in (7, 77, 7):
                name_junk(TOPIC, offset, b"skip", "junk")
        assert [line["offset"] for line in said] == [7, 77]
        for offset in range(100, 100 + 2 * module.MOST_NAMED):
            name_junk(TOPIC, offset, b"skip", "junk")
    assert len(said) == module.MOST_NAMED


async def test_who_reads_on_reads_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Log(monkeypatch, [(GENESIS_KEY, FIRST.pack())])
    client: Any = object()
    control = ControlLog()
    await read_on(client, {TOPIC: control})
    topic.records += [skip_record(0, 5), skip_record(0, 6)]
    await read_on(client, {TOPIC: control})
    assert control.skips == {0: {5, 6}}
    assert topic.ranges == [(0, 1), (1, 3)]
    topic.first = 2
    await read_on(client, {TOPIC: ControlLog()})
    assert topic.ranges[-1] == (2, 3)


async def test_another_versions_genesis_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    other = FIRST.pack().replace(b'"format":1', b'"format":2')
    Log(monkeypatch, [(b"skip", b"junk"), (GENESIS_KEY, other)])
    client: Any = object()
    with pytest.raises(FingerprintError, match=r"^offset 1 of control\.raw-text\.train: .* format 2"):
        await read_on(client, {TOPIC: ControlLog()})


@pytest.mark.parametrize(
    ("start", "found", "starts"),
    [
        ("earliest", None, (3, 0)),
        ("2026-01-01T00:00:00Z", (5, 0), (5, 0)),
        ("2026-01-01T00:00:00Z", (None, 7), (10, 7)),
    ],
)
async def test_a_chain_starts_at_the_first_record_from_its_moment(
    monkeypatch: pytest.MonkeyPatch, start: str, found: tuple[int | None, ...] | None, starts: tuple[int, ...]
) -> None:
    held = {TopicPartition("raw-text", 0): (3, 10), TopicPartition("raw-text", 1): (0, 20)}

    async def require_topic(*_: object) -> int:
        return 2

    async def offsets(*_: object) -> dict[TopicPartition, tuple[int, int]]:
        return held

    async def for_times(asked: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        assert found is not None
        return {tp: None if at is None else SimpleNamespace(offset=at) for tp, at in zip(asked, found, strict=True)}

    monkeypatch.setattr(module, "require_topic", require_topic)
    monkeypatch.setattr(module, "offsets", offsets)
    settings = Settings(raw_topics=("raw-text",), tokenizer="bytes", start=start)
    client: Any = SimpleNamespace(offsets_for_times=for_times)
    stream = Stream("raw-text.train", "raw-text", "train")
    assert await module._starts(client, settings, stream) == starts


def test_other_settings_can_be_set_back() -> None:
    genesis = Genesis("s", replace(NOW, min_chars=3), (0,), 8)
    with pytest.raises(
        FingerprintError, match=r"min_chars: the stream has 3, here 0.*: set them back, or .* stream_suffix"
    ):
        require_fingerprint(genesis, NOW)


@pytest.mark.parametrize("mode", ["auto", "json"])
def test_a_stream_of_earlier_decoding_rules_is_refused_with_what_to_do(mode: str) -> None:
    """No setting brings the rules back: the version that made the stream does, or a new stream."""
    now = complete(replace(RECIPE, decode=mode), RAW, None)[0]
    before = replace(now, steps=({"name": "not_empty"},))
    with pytest.raises(FingerprintError, match=rf'decode = "{mode}" has other rules since: .* stream_suffix'):
        require_fingerprint(Genesis("s", before, (0,), 8), now)


def test_a_stream_of_the_same_recipe_is_continued() -> None:
    require_fingerprint(Genesis("s", NOW, (0,), 8), NOW)
    now = complete(replace(RECIPE, decode="text"), RAW, None)[0]
    require_fingerprint(Genesis("s", replace(now, steps=({"name": "not_empty"},)), (0,), 8), now)


FETCH_BYTES = 2048
"""A few eras, so that a look needs many fetches."""


@pytest.fixture
def settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Settings:
    return service_settings(broker, topic(), tmp_path)


@pytest.fixture
def eras() -> list[Era]:
    found: list[Era] = []
    for number in range(1, 41):
        found.append(next_era(found, [number]))
    return found


async def test_eras_come_fetch_by_fetch(settings: Settings, eras: list[Era]) -> None:
    """Whoever leaves a look in the middle goes on behind the eras that came; what is no era is counted."""
    (topic,) = settings.raw_topics
    await write_control(settings, topic, [(b"skip", b"{}")])
    await write_control(settings, topic, [(ERA_KEY, era.pack()) for era in (*eras, eras[3])])
    follower = EraFollower("a stream", FINGERPRINT)
    parts: list[list[tuple[Era, int]]] = []
    async with consumer(settings, max_partition_fetch_bytes=FETCH_BYTES) as client:
        for _ in range(2):
            async for part in read_eras(client, topic, follower):
                assert follower.log.last == part[-1][0]
                parts.append(list(part))
                if len(parts) == 3:
                    break
        assert follower.ignored == 1
        assert [part async for part in read_eras(client, topic, follower)] == []
    assert len(parts) > 5
    assert [pair for part in parts for pair in part] == [(era, 1 + number) for number, era in enumerate(eras)]


async def test_a_record_that_is_no_era_is_named_and_counted(
    settings: Settings, eras: list[Era], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however often it is met; an era that merely continues nothing is what two writers make."""
    monkeypatch.setattr(module, "_named", set())
    (topic,) = settings.raw_topics
    counted = metrics.CONTROL_JUNK.labels(topic)
    before = counted._value.get()
    values = [b"junk", eras[0].pack(), eras[0].pack(), b"{}", eras[5].pack(), eras[1].pack(), b"[" * 200_000]
    await write_control(settings, topic, [(ERA_KEY, value) for value in values])
    with capture_logs() as said:
        async with consumer(settings) as client:
            for _ in range(2):
                follower = EraFollower("a stream", FINGERPRINT)
                found = [era async for part in read_eras(client, topic, follower) for era, _ in part]
                assert found == eras[:2]
                assert [part async for part in read_eras(client, topic, follower)] == []
    assert [(line["topic"], line["offset"], line["key"]) for line in said] == [(topic, at, ERA_KEY) for at in (0, 3, 6)]
    assert all(line["reason"].startswith("no era") and len(line["reason"]) <= 200 for line in said)
    assert counted._value.get() == before + 3


async def test_a_look_ends_where_it_is_told_to(settings: Settings, eras: list[Era]) -> None:
    (topic,) = settings.raw_topics
    await write_control(settings, topic, [(ERA_KEY, era.pack()) for era in eras[:9]])
    follower = EraFollower("a stream", FINGERPRINT)
    async with consumer(settings) as client:
        for end, expected in ((4, eras[:4]), (4, []), (None, eras[4:9]), (9, [])):
            assert [era async for part in read_eras(client, topic, follower, end) for era, _ in part] == expected
        with pytest.raises(MovedError, match="holds offsets 0 to 9"):
            _ = [part async for part in read_eras(client, topic, follower, 12)]
    assert follower.log.last == eras[8]
