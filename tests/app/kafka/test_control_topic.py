"""Settling a stream and reading its control topic, on scripted clients and on a broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tests.eras.histories import FINGERPRINT, next_era
from tests.mills import RAW, RECIPE
from tests.service import in_own_loop, service_settings
from tests.simulation.era_workers import STREAM, SimulatedConsumer, Topics, Written
from tests.store.chains import make_chain, make_eras, make_info
from tokenmill.app.kafka import control_topic
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_log import ControlLog, skip_record
from tokenmill.app.kafka.control_topic import (
    name_junk,
    read_eras,
    read_on,
    require_fingerprint,
    require_ready,
    settle,
    write_control,
)
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.settings import Settings, Stream
from tokenmill.app.telemetry import worker_metrics as metrics
from tokenmill.documents import Record
from tokenmill.eras import ERA_KEY, Era, EraFollower, LogRecord
from tokenmill.errors import DifferenceError, FingerprintError, MissingTopicError, MovedError, TopicError
from tokenmill.recipe import GENESIS_KEY, Genesis

TOPIC = "control.raw-text.train"
SETTLED = Genesis("raw-text.train", RECIPE, (0,), 16)


CLIENT: Any = object()


class Log:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: list[tuple[bytes | None, bytes | None]]) -> None:
        self.records = records
        self.first = 0
        self.ranges: list[tuple[int, int]] = []
        monkeypatch.setattr(control_topic, "offsets", self.offsets)
        monkeypatch.setattr(control_topic, "read_range", self.read_range)
        monkeypatch.setattr(control_topic, "_named", set())

    async def offsets(self, _client: object, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (self.first, len(self.records)))

    async def read_range(self, _client: object, _tp: object, start: int, end: int) -> AsyncIterator[Record]:
        self.ranges.append((start, end))
        for offset in range(start, end):
            yield Record(offset, 0, *self.records[offset])


async def test_junk_is_named_once_and_counted_and_what_is_right_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Log(
        monkeypatch, [(b"skip", b"junk"), (GENESIS_KEY, SETTLED.pack()), (b"skip-request", b"[]"), (b"x", b"y")]
    )
    before = metrics.CONTROL_JUNK.labels(TOPIC)._value.get()
    with capture_logs() as said:
        for _ in range(3):
            control = ControlLog("raw-text.train")
            await read_on(CLIENT, {TOPIC: control})
            assert (control.genesis, control.junk) == (SETTLED, 2)
    named = [(line["offset"], line["key"], line["topic"]) for line in said]
    assert named == [(0, b"skip", TOPIC), (2, b"skip-request", TOPIC)]
    assert all("let only mills" in line["advice"] for line in said)
    assert metrics.CONTROL_JUNK.labels(TOPIC)._value.get() == before + 2
    assert topic.ranges == [(0, 4)] * 3
    assert [line["log_level"] for line in said] == ["warning", "info"], "a command, which shows warnings, shows one"


def test_workers_of_one_supervisor_name_a_junk_record_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whichever of them finds it first, and however often they start again; and so many at most, all together."""
    with (tmp_path / "named").open("w+b") as shared, capture_logs() as said:
        monkeypatch.setenv(control_topic.NAMED_VARIABLE, str(shared.fileno()))
        for _ in range(3):
            monkeypatch.setattr(control_topic, "_named", set())  # as in a process that has just begun
            for offset in (7, 77, 7):
                name_junk(TOPIC, offset, b"skip", "junk")
        assert [line["offset"] for line in said] == [7, 77]
        for offset in range(100, 100 + 2 * control_topic.MOST_NAMED):
            name_junk(TOPIC, offset, b"skip", "junk")
    assert len(said) == control_topic.MOST_NAMED


async def test_who_reads_on_reads_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Log(monkeypatch, [(GENESIS_KEY, SETTLED.pack())])
    control = ControlLog()
    await read_on(CLIENT, {TOPIC: control})
    topic.records += [skip_record(0, 5), skip_record(0, 6)]
    await read_on(CLIENT, {TOPIC: control})
    assert control.skips == {0: {5, 6}}
    assert topic.ranges == [(0, 1), (1, 3)]
    topic.first = 2
    await read_on(CLIENT, {TOPIC: ControlLog()})
    assert topic.ranges[-1] == (2, 3)


async def test_another_versions_genesis_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SETTLED.pack().replace(b'"format":1', b'"format":2')
    Log(monkeypatch, [(b"skip", b"junk"), (GENESIS_KEY, other)])
    with pytest.raises(FingerprintError, match=r"^offset 1 of control\.raw-text\.train: .* format 2"):
        await read_on(CLIENT, {TOPIC: ControlLog()})


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

    monkeypatch.setattr(control_topic, "require_topic", require_topic)
    monkeypatch.setattr(control_topic, "offsets", offsets)
    settings = Settings(raw_topics=("raw-text",), tokenizer="bytes", start=start)
    client: Any = SimpleNamespace(offsets_for_times=for_times)
    stream = Stream("raw-text.train", "raw-text", "train")
    assert await control_topic._starts(client, settings, stream) == starts


EARLIER = ({"name": "not_empty"},)
"""The steps of a stream that was made when decoding had other rules."""


@pytest.mark.parametrize(
    ("decode", "before", "words"),
    [
        ("auto", {"min_chars": 3}, r"min_chars: the stream has 3, here 0.*: set them back, or .* stream_suffix"),
        ("auto", {"steps": EARLIER}, r'decode = "auto" has other rules since: .* stream_suffix'),
        ("json", {"steps": EARLIER}, r'decode = "json" has other rules since: .* stream_suffix'),
        ("auto", {}, ""),
        ("text", {"steps": EARLIER}, ""),  # plain text has the fingerprint that it always had
    ],
)
def test_a_stream_of_other_settings_or_rules_is_refused_with_what_to_do(decode: str, before: Any, words: str) -> None:
    """Settings can be set back. None brings rules back: the version that made the stream does, or a new stream."""
    now = complete(replace(RECIPE, decode=decode), RAW, None)[0]
    with pytest.raises(FingerprintError, match=words) if words else nullcontext():
        require_fingerprint(Genesis("s", replace(now, **before), (0,), 8), now)


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
    (topic,) = settings.raw_topics
    await write_control(settings, topic, [(b"skip", b"{}")])
    await write_control(settings, topic, [(ERA_KEY, era.pack()) for era in (*eras, eras[3])])
    follower = EraFollower("a stream", FINGERPRINT)
    parts: list[list[tuple[Era, int]]] = []
    async with consumer(settings, max_partition_fetch_bytes=2048) as client:  # a few eras
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
    monkeypatch.setattr(control_topic, "_named", set())
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


def settled(settings: Settings) -> None:
    plan = plan_topic(settings, settings.raw_topics[0])
    for stream, recipe in plan.recipes.items():
        in_own_loop(lambda: settle(settings, stream, recipe, plan.tokenizer.content))  # noqa: B023 - called at once


async def test_settings_go_before_limits_of_topics(settings: Settings) -> None:
    """Longer blocks and ids ask for larger messages than the stream's topics take; that is no matter of the topics."""
    await asyncio.to_thread(settled, settings)
    changed = settings.model_copy(update={"sequence_length": 100_000, "max_id_bytes": 500, "tokenizer": "missing.json"})
    with pytest.raises(FingerprintError) as caught:
        await require_ready(changed)
    said = str(caught.value)
    assert "sequence_length: the stream has 63, here 100000" in said
    assert "max_id_bytes: the stream has 128, here 500" in said
    assert "max.message.bytes" not in said
    assert "max_text_bytes" not in said  # the stream has its tokenizer's, and here none is loaded yet
    assert await require_ready(settings) == []


@pytest.mark.needs("minutes")
async def test_limits_of_topics_are_told_where_settings_are_the_streams(settings: Settings) -> None:
    with pytest.raises(TopicError, match=r"set max\.message\.bytes="):
        await require_ready(settings.model_copy(update={"sequence_length": 100_000}))
    await asyncio.to_thread(settled, settings)
    with pytest.raises(TopicError, match=r"set max\.message\.bytes="):
        await require_ready(settings.model_copy(update={"message_bytes": 1 << 24}))
    with pytest.raises(MissingTopicError):
        await require_ready(settings.model_copy(update={"stream_suffix": "-other"}))


INFO: Final = make_info()
CHAIN: Final = make_chain(INFO, 12)
ZERO, LONG, AFTER_LONG = make_eras(INFO, {0: CHAIN}, [{0: 3}, {0: 9}, {0: 11}])
SHORT: Final = make_eras(INFO, {0: CHAIN}, [{0: 3}, {0: 6}])[1]
"""Another one that follows `ZERO`: whichever of both comes first on the log is the next era, and the other one none."""
NOTE: Final = Written(b"note", b"no era")
_is_still_there = control_topic._is_still_there


def record(era: Era) -> Written:
    return Written(ERA_KEY, era.pack())


def eras_read(*records: tuple[Written, int], then: Sequence[Era], keep: int = 1, at: int) -> list[Era]:
    """Read all eras of a topic of these records, each behind so many empty offsets; one offset in a fetch.

    Once offset ``at`` is to be fetched next, all but the first ``keep`` records is lost where other eras come.
    """
    topics, one = Topics(1), cast("Any", SimpleNamespace(randint=lambda *_: 1))
    for each, gap in records:
        topics.control.append(each, gap)
    client, follower = SimulatedConsumer(topics, one), EraFollower(STREAM.name, INFO.fingerprint)

    async def look() -> list[Era]:
        found = read_eras(cast("Any", client), STREAM.control_topic, follower)
        return [era async for eras in found for era, _ in eras]

    looking, changed = look(), False
    while True:
        try:
            looking.send(None)
        except StopIteration as ended:
            assert changed
            return cast("list[Era]", ended.value)
        if not changed and client._position == at:
            changed = True
            if then:
                topics.control.lose_tail(keep) if keep else topics.control.recreate()
            for era in then:
                topics.control.append(record(era))


@pytest.mark.parametrize(
    ("records", "keep", "at"),
    [
        ([(NOTE, 1)], 0, 1),  # offset 0 held nothing when it was fetched, and holds an era now
        ([(record(ZERO), 0), (NOTE, 1)], 1, 2),  # the record before is there, and says nothing of what came after it
    ],
    ids=["made again", "tail lost"],
)
def test_what_is_lost_behind_an_empty_offset_is_noticed(records: Any, keep: int, at: int) -> None:
    assert eras_read(*records, then=[ZERO, LONG, SHORT][keep:], keep=keep, at=at) == [ZERO, LONG]


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_empty_offsets_alone_change_nothing(gap: int) -> None:
    assert eras_read((record(ZERO), gap), (record(LONG), gap), then=[], at=1) == [ZERO, LONG]


def test_a_look_that_was_left_does_not_undo_the_next_one() -> None:
    """A generator that nobody reads on is closed some time later."""
    topics, one = Topics(1), cast("Any", SimpleNamespace(randint=lambda *_: 1))
    for era in (ZERO, LONG, AFTER_LONG):
        topics.control.append(record(era), 0)
    client: Any = SimulatedConsumer(topics, one)
    follower = EraFollower(STREAM.name, INFO.fingerprint)

    async def looks() -> None:
        left, right = (cast("Any", read_eras(client, STREAM.control_topic, follower)) for _ in range(2))
        assert [era for era, _ in await anext(left)] == [ZERO]
        assert [era async for eras in right for era, _ in eras] == [LONG, AFTER_LONG]
        await left.aclose()
        assert follower.log.last == AFTER_LONG

    for _ in looks().__await__():
        pass  # each request is answered in its turn


ERA_LOST: Final[Any] = partial(
    eras_read, (record(ZERO), 0), (record(LONG), 0), (NOTE, 0), then=(SHORT, AFTER_LONG), at=2
)
"""Offset 1 has one era before offset 2 is fetched, and another one then."""
NOTE_LOST: Final[Any] = partial(eras_read, (record(ZERO), 0), (NOTE, 0), (NOTE, 0), then=(LONG, SHORT), at=2)
"""Offset 1 has no era before offset 2 is fetched, and an era then."""


def test_an_era_that_is_lost_between_two_fetches_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second fetch brings continues the era that was lost, and not the one that is there now."""
    with pytest.raises(DifferenceError, match="not on its control topic any more"):
        ERA_LOST()
    monkeypatch.setattr(control_topic, "_is_still_there", AsyncMock(return_value=True))
    assert ERA_LOST() == [ZERO, LONG, AFTER_LONG]  # so the rule is needed


def test_a_record_that_was_ignored_is_looked_at_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was, the next era is now; what the second fetch brings came too late."""
    assert NOTE_LOST() == [ZERO, LONG]
    monkeypatch.setattr(control_topic, "_is_still_there", _eras_are)
    assert NOTE_LOST() == [ZERO, SHORT]  # so the rule is needed


async def _eras_are(client: Any, partition: Any, last: LogRecord) -> bool:
    return last.key != ERA_KEY or await _is_still_there(client, partition, last)
