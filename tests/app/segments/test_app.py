"""The segment app: which store it fills, and eras on their way from a mill into it."""

from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.segments.app import create_app
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import STORE_VARIABLE
from tokenmill.errors import DiskError
from tokenmill.store import Store, open_eras, open_partition


def test_next_worker_fills_the_same_store_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is not mounted, its empty directory is not taken for a place for a new store."""
    settings = Settings(raw_topics=("raw-text",), store=tmp_path / "disk" / "store")
    create_app(settings)
    monkeypatch.setenv(STORE_VARIABLE, Store.open(settings.store).id)
    create_app(settings)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    (tmp_path / "disk").mkdir()
    with pytest.raises(DiskError, match="no longer holds the store"):
        create_app(settings)
    assert list((tmp_path / "disk").iterdir()) == []


def documents(count: int) -> list[Raw]:
    return [Raw(b"a document of some length, and some more of it " * 4, number % 3) for number in range(count)]


def all_in_eras(settings: Settings, stream: str) -> bool:
    eras = open_eras(settings.store, stream)
    stored = [open_partition(settings.store, stream, number).blocks for number in range(3)]
    return eras.eras > 0 and [part.stop for part in eras.era(eras.eras - 1).ranges] == stored


@pytest.mark.slow
def test_what_is_milled_becomes_trainable_in_every_store(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    settings = service_settings(
        broker, topic(3), tmp_path, splits={"all": 1000}, era_blocks=50, era_max_seconds=0.5, session_timeout=1.5
    )
    (stream,) = settings.streams()
    other = settings.model_copy(update={"store": tmp_path / "other"})
    with Service(settings, tmp_path) as service, Service(other, tmp_path / "logs") as late:
        (tmp_path / "logs").mkdir()
        service.mill()
        service.segment()
        for _ in range(2):
            send(settings, documents(60))
            service.wait_until_complete()
            service.wait_until(partial(all_in_eras, settings, stream.name))
        late.segment()
        late.wait_until((other.store / stream.name).exists)
        send(settings, documents(60))
        service.wait_until_complete()
        for who, found in ((service, settings), (late, other)):
            who.wait_until(partial(all_in_eras, found, stream.name))
    one, two = (found.store / stream.name / "eras.jsonl" for found in (settings, other))
    assert one.read_bytes() == two.read_bytes()
    eras = open_eras(settings.store, stream.name)
    readers = [open_partition(settings.store, stream.name, number) for number in range(3)]
    assert eras.blocks == sum(reader.blocks for reader in readers)
    for number in range(eras.eras):
        for partition, part in enumerate(eras.era(number).ranges):
            reader = readers[partition]
            assert (part.before, part.after) == (reader.chain_before(part.first), reader.chain_before(part.stop))
