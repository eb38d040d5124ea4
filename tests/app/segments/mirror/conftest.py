"""A stream on brokers in memory, and an empty store for it."""

from pathlib import Path

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryKafka, MemoryStream
from tokenmill.app.segments import following, mirror
from tokenmill.app.segments import token_partition as block_appender
from tokenmill.app.settings import Settings
from tokenmill.store import Store


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
    kafka = MemoryKafka()
    kafka.install(monkeypatch)
    monkeypatch.setattr(mirror, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(mirror, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr("tokenmill.app.segments.era_bringing.LOOK_SECONDS", 0.001)
    monkeypatch.setattr(block_appender, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(following, "GAP_SECONDS", 0.001)
    monkeypatch.setattr(following, "LONGEST_GAP_SECONDS", 0.001)
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
