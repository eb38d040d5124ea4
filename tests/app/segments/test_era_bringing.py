"""Eras on their way from mill to store: what is milled becomes trainable, whoever dies meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.store import open_eras, open_partition


@pytest.fixture
def settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Settings:
    return service_settings(
        broker, topic(3), tmp_path, splits={"all": 1000}, era_blocks=50, era_max_seconds=0.5, session_timeout=1.5
    )


def documents(count: int) -> list[Raw]:
    return [Raw(b"a document of some length, and some more of it " * 4, number % 3) for number in range(count)]


def all_in_eras(settings: Settings) -> Callable[[], bool]:
    (stream,) = settings.streams()

    def look() -> bool:
        eras = open_eras(settings.store, stream.name)
        if not eras.eras:
            return False
        stored = [open_partition(settings.store, stream.name, number).blocks for number in range(3)]
        return [part.stop for part in eras.era(eras.eras - 1).ranges] == stored

    return look


@pytest.mark.slow
def test_what_is_milled_becomes_trainable_in_every_store(settings: Settings, tmp_path: Path) -> None:
    (stream,) = settings.streams()
    other = settings.model_copy(update={"store": tmp_path / "other"})
    with Service(settings, tmp_path) as service, Service(other, tmp_path / "logs") as late:
        (tmp_path / "logs").mkdir()
        service.mill()
        service.segment()
        for _ in range(2):
            send(settings, documents(60))
            service.wait_until_complete()
            service.wait_until(all_in_eras(settings))
        late.segment()
        late.wait_until((other.store / stream.name).exists)
        send(settings, documents(60))
        service.wait_until_complete()
        for who, found in ((service, settings), (late, other)):
            who.wait_until(all_in_eras(found))
    one, two = (found.store / stream.name / "eras.jsonl" for found in (settings, other))
    assert one.read_bytes() == two.read_bytes()
    eras = open_eras(settings.store, stream.name)
    readers = [open_partition(settings.store, stream.name, number) for number in range(3)]
    assert eras.blocks == sum(reader.blocks for reader in readers)
    for number in range(eras.eras):
        for partition, part in enumerate(eras.era(number).ranges):
            reader = readers[partition]
            assert (part.before, part.after) == (reader.chain_before(part.first), reader.chain_before(part.stop))
