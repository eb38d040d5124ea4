"""A stream on brokers in memory, for whoever verifies it in this process."""

from pathlib import Path

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryKafka
from tests.app.tools.verify.memory_stream import TEXTS, MemoryVerification, installed
from tests.app.tools.verify.published import Published, settled
from tests.conftest import TopicFactory
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryKafka:
    """Return brokers in memory, which verifications speak to."""
    return installed(MemoryKafka(), monkeypatch)


@pytest.fixture
def published(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Published:
    """Return settled streams on a broker, with nothing on their token topics yet."""
    return settled(broker, topic, tmp_path)


@pytest.fixture
def stream(kafka: MemoryKafka, tmp_path: Path) -> MemoryVerification:
    """Return a stream with a raw topic, and nothing on its token topic yet."""
    settings = Settings(
        tokenizer="bytes", sequence_length=3, segment_blocks=4, splits={"all": 1000}, store=tmp_path / "store"
    )
    return MemoryVerification(kafka, settings, TEXTS)
