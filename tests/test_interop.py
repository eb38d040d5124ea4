"""Text comes from any Kafka client, and is read back without TokenMill: by numpy from files, by others from Kafka."""

import json
from pathlib import Path

import confluent_kafka
import faust
import numpy as np

from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.documents import FLUSH_HEADER


class Article(faust.Record, serializer="json"):
    """What a Faust app of somebody else sends."""

    content: str
    id: int


TEXTS = ["plain text, as it is", "the text of a JSON object", "the content of a faust.Record"]


def test_text_from_any_client_is_read_back_without_us(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """A plain string, a JSON object and a faust.Record become tokens that np.memmap and confluent-kafka see alike."""
    raw_topic = topic(1)
    settings = service_settings(broker, raw_topic, tmp_path, splits={"all": 1000}, segment_blocks=1, sequence_length=63)
    article = Article(content=TEXTS[2], id=7).dumps()
    assert b"__faust" in article
    send(settings, [Raw(TEXTS[0].encode()), Raw(json.dumps({"text": TEXTS[1], "id": "x"}).encode()), Raw(article)])
    send(settings, [Raw(None, headers=[FLUSH_HEADER])])
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        service.wait_until_complete()

    stream = f"{raw_topic}.all"
    files = sorted((settings.store / stream / "0").glob("*.bin"))
    stored = np.concatenate([np.memmap(file, dtype="<u1", mode="r").reshape(-1, 64) for file in files])

    client = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "somebody-else"})
    client.assign([confluent_kafka.TopicPartition(f"tokens.{stream}", 0, 0)])
    published = np.empty((0, 64), "<u1")
    while len(published) < len(stored):
        message = client.poll(10)
        assert message is not None
        published = np.concatenate([published, np.frombuffer(message.value() or b"", "<u1").reshape(-1, 64)])
    client.close()

    documents = stored.tobytes().decode().rstrip("\0").split("\0")
    assert documents == TEXTS
    assert np.array_equal(stored, published)
