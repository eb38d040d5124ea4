"""Where a verification ends: the marks are fixed against the way that the data takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryClient, MemoryKafka
from tests.app.tools.verify.memory_stream import MemoryVerification
from tokenmill.app.segments.retiring import retire
from tokenmill.app.settings import dead_letter_topic
from tokenmill.app.tools.verify import verify_bounds
from tokenmill.app.tools.verify.verify_bounds import EraMarks, StoreEras, StoreMark, take_marks
from tokenmill.errors import TopicError


@pytest.fixture
def asked(stream: MemoryVerification, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let all topics be there, and note what is asked in which order."""
    stream.kafka.append(stream.settled.stream.control_topic, 0, b"genesis")
    stream.kafka.append(dead_letter_topic(stream.raw.topic), 1, b"letter")
    stream.kafka.append(dead_letter_topic(stream.raw.topic), 0, b"letter")
    asked: list[str] = []
    ends, look, store = MemoryClient.end_offsets, StoreEras.look, verify_bounds.store_mark

    async def end_offsets(client: MemoryClient, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert set(tps) <= client._kafka.logs.keys()  # brokers do not answer for what they do not know
        asked.extend(sorted({tp.topic for tp in tps}))
        return await ends(client, tps)

    def store_eras(*arguments: Any) -> StoreEras | None:
        asked.append("the store's eras")
        return look(*arguments)

    def noted_mark(*arguments: Any) -> StoreMark | None:
        asked.append("the store")
        return store(*arguments)

    monkeypatch.setattr(MemoryClient, "topics", topics, raising=False)
    monkeypatch.setattr(MemoryClient, "end_offsets", end_offsets)
    monkeypatch.setattr(StoreEras, "look", store_eras)
    monkeypatch.setattr(verify_bounds, "store_mark", noted_mark)
    return asked


class Topics(set[str]):
    """The names of all topics: to a consumer they come awaited, in a cluster's metadata at once."""

    def __await__(self) -> Any:
        yield from ()
        return set(self)


def topics(client: MemoryClient) -> Topics:
    """Return the names of all topics."""
    return Topics(tp.topic for tp in client._kafka.logs)


async def test_marks_are_taken_against_the_datas_way(stream: MemoryVerification, asked: list[str]) -> None:
    """So each covers all that those before it were made of."""
    sent = stream.milled(2)
    stream.publish(sent)
    store = stream.store(sent)
    marks = await take_marks(stream.settings, [stream.settled], store)
    names = stream.settled.stream
    assert asked == [
        "the store's eras",
        names.control_topic,
        "the store",
        names.tokens_topic,
        dead_letter_topic(names.raw_topic),
        names.raw_topic,
    ]
    (chain,) = marks.chains
    assert (chain.raw, chain.tokens, chain.store) == ((0, 12), (0, len(sent)), StoreMark(0, 45))
    assert marks.dead_letters == {names.raw_topic: {0: (0, 1), 1: (0, 1)}}
    assert marks.eras == {names.name: EraMarks(1, StoreEras(0))}


@pytest.mark.usefixtures("asked")
async def test_a_raw_topic_that_grew_has_partitions_without_tokens(stream: MemoryVerification) -> None:
    """Each has its own token partition, or none yet; without a dead-letter topic none is asked for."""
    stream.publish(stream.milled(2))
    for partition, records in ((1, 3), (2, 5)):
        for _ in range(records):
            stream.kafka.append(stream.raw.topic, partition, b"text")
    stream.kafka.append(stream.tokens.topic, 1, b"message")
    for partition in (0, 1):
        del stream.kafka.logs[TopicPartition(dead_letter_topic(stream.raw.topic), partition)]
    marks = await take_marks(stream.settings, [stream.settled], None)
    tokens = len(stream.kafka.logs[stream.tokens])
    assert [(c.partition, c.raw, c.tokens, c.store) for c in marks.chains] == [
        (0, (0, 12), (0, tokens), None),
        (1, (0, 3), (0, 1), None),
        (2, (0, 5), (0, 0), None),
    ]
    assert marks.dead_letters == {}
    assert marks.eras[stream.settled.stream.name].store is None


@pytest.mark.usefixtures("asked")
async def test_a_missing_topic_is_named(kafka: MemoryKafka, stream: MemoryVerification) -> None:
    """Nothing is compared with nothing."""
    del kafka.logs[stream.tokens]
    with pytest.raises(TopicError, match=stream.tokens.topic):
        await take_marks(stream.settings, [stream.settled], None)


def test_what_a_store_holds_of_a_partition_is_told(stream: MemoryVerification, tmp_path: Path) -> None:
    """From its first block on; where it cannot be read, why."""
    store, name = stream.store(stream.milled(2)), stream.settled.stream.name
    assert verify_bounds.store_mark(None, name, 0) is None
    assert verify_bounds.store_mark(tmp_path, name, 0) == StoreMark(0, 0), "it has no such stream"
    assert verify_bounds.store_mark(store, name, 0) == StoreMark(0, 45)
    retire(store, name, 0, 20)
    assert verify_bounds.store_mark(store, name, 0) == StoreMark(20, 45)
    (store / name / "stream.json").write_text("{}")
    damaged = verify_bounds.store_mark(store, name, 0)
    assert damaged is not None
    assert (damaged.first, damaged.end, bool(damaged.damage)) == (0, 0, True)
