"""Looking at a control topic on a broker: the eras come fetch by fetch, and a follower stands behind what was given."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.conftest import TopicFactory
from tests.eras.histories import FINGERPRINT, next_era
from tests.service import service_settings
from tokenmill.app import telemetry as metrics
from tokenmill.app.kafka import control_topic as control
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_topic import write_control
from tokenmill.app.kafka.era_topic import look
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.eras import ERA_KEY, Era, EraFollower
from tokenmill.errors import MovedError

FETCH_BYTES = 2048
"""A few eras, so that a look needs many fetches."""


@pytest.fixture
def settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Settings:
    """Make a topic to write eras to."""
    return service_settings(broker, topic(), tmp_path)


@pytest.fixture
def eras() -> list[Era]:
    """Return a chain of eras."""
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
            async for part in look(client, topic, follower):
                assert follower.log.last == part[-1][0]
                parts.append(list(part))
                if len(parts) == 3:
                    break
        assert follower.ignored == 1
        assert [part async for part in look(client, topic, follower)] == []
    assert len(parts) > 5
    assert [pair for part in parts for pair in part] == [(era, 1 + number) for number, era in enumerate(eras)]


async def test_a_record_that_is_no_era_is_named_and_counted(
    settings: Settings, eras: list[Era], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however often it is met; an era that merely continues nothing is what two writers make."""
    monkeypatch.setattr(control, "_named", set())
    (topic,) = settings.raw_topics
    counted = metrics.CONTROL_JUNK.labels(topic)
    before = counted._value.get()
    values = [b"junk", eras[0].pack(), eras[0].pack(), b"{}", eras[5].pack(), eras[1].pack(), b"[" * 200_000]
    await write_control(settings, topic, [(ERA_KEY, value) for value in values])
    with capture_logs() as said:
        async with consumer(settings) as client:
            for _ in range(2):
                follower = EraFollower("a stream", FINGERPRINT)
                found = [era async for part in look(client, topic, follower) for era, _ in part]
                assert found == eras[:2]
                assert [part async for part in look(client, topic, follower)] == []
    assert [(line["topic"], line["offset"], line["key"]) for line in said] == [(topic, at, ERA_KEY) for at in (0, 3, 6)]
    assert all(line["reason"].startswith("no era") and len(line["reason"]) <= 200 for line in said)
    assert counted._value.get() == before + 3


async def test_a_look_ends_where_it_is_told_to(settings: Settings, eras: list[Era]) -> None:
    """What comes behind the mark is left to the next look; a mark that the topic does not reach is named."""
    (topic,) = settings.raw_topics
    await write_control(settings, topic, [(ERA_KEY, era.pack()) for era in eras[:9]])
    follower = EraFollower("a stream", FINGERPRINT)
    async with consumer(settings) as client:
        for end, expected in ((4, eras[:4]), (4, []), (None, eras[4:9]), (9, [])):
            assert [era async for part in look(client, topic, follower, end) for era, _ in part] == expected
        with pytest.raises(MovedError, match="holds offsets 0 to 9"):
            _ = [part async for part in look(client, topic, follower, 12)]
    assert follower.log.last == eras[8]
