"""What a broker took is read, each record at the offset that it has there, whatever its client made of it."""

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from tests.conftest import TopicFactory
from tests.odd_batches import GOOD, GZIP, LZ4, NOW, ODD, SNAPPY, batch, record, send_batch, send_through
from tokenmill.app.kafka.clients import consumer, offsets, producer, read_range
from tokenmill.app.kafka.fetched_batches import FetchedBatches, unpack
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.records import SourceRecord


async def read_all(settings: Settings, partition: TopicPartition) -> list[SourceRecord]:
    """Return what a partition holds."""
    async with consumer(settings) as client:
        span = (await offsets(client, [partition]))[partition]
        return [record async for record in read_range(client, partition, *span)]


@pytest.mark.usefixtures("both_ways")
async def test_nothing_in_a_record_beside_its_value_ends_a_fetch(broker: Broker, topic: TopicFactory) -> None:
    """Every odd batch between good ones: each record has its value, and the next offset, and the good ones follow."""
    settings, partition = Settings(bootstrap_servers=broker.bootstrap_servers), TopicPartition(topic(), 0)
    ends = []
    async with producer(settings) as client:
        for data in ODD.values():
            await client.send_and_wait(partition.topic, b"before", partition=0)
            await send_through(client, partition.topic, data)
            ends.append((await client.send_and_wait(partition.topic, b"after", partition=0)).offset)
    found = await read_all(settings, partition)
    assert [record.offset for record in found] == list(range(ends[-1] + 1))
    assert {record.value for record in found} == {b"before", GOOD, None, b"after"}
    assert [found[end].value for end in ends] == [b"after"] * len(ODD)


@pytest.mark.usefixtures("both_ways")
async def test_a_name_of_a_header_is_text_whatever_its_bytes(broker: Broker, topic: TopicFactory) -> None:
    """Those that are no UTF-8 are spelled out; the other headers of the record are as they were."""
    settings, partition = Settings(bootstrap_servers=broker.bootstrap_servers), TopicPartition(topic(), 0)
    headers = [(b"caf\xe9", b"1"), ("café".encode(), b"\xff"), (b"", None)]
    await send_batch(settings, partition.topic, batch([record(0, b"x", key=b"k", headers=headers, later=3)]))
    (found,) = await read_all(settings, partition)
    assert list(found.headers) == [("caf\\xe9", b"1"), ("café", b"\xff"), ("", None)]
    assert (found.key, found.value, found.timestamp) == (b"k", b"x", NOW + 3)


def test_a_batch_that_no_broker_takes_is_refused() -> None:
    """With its offset, and not read past its end."""
    for codec in (GZIP, SNAPPY, LZ4, 4, 5):
        with pytest.raises(CorruptRecordException, match="offset 0: the batch cannot be unpacked"):
            list(FetchedBatches(batch([record(0, b"x")], codec, lambda data: b"\x82SNAPPY\0" + data)).next_batch())
    cut = batch([record(0, b"x" * 100)], 0, lambda data: data[:-50])
    with pytest.raises(CorruptRecordException, match="offset 0: the batch cannot be unpacked"):
        unpack(memoryview(cut))


def test_records_of_a_compacted_log_keep_their_offsets() -> None:
    """A batch may lack some of its records, and the others are where they were."""
    data = bytearray(batch([record(number, b"x") for number in range(3)]))
    whole = batch([record(0, b"x"), record(7, b"y"), record(9, b"z")])
    data = bytearray(whole)
    data[23:27] = (12).to_bytes(4)  # the last offset, which says more than the number of records
    read = FetchedBatches(bytes(data)).next_batch()
    assert [record.offset for record in read] == [0, 7, 9]
    assert read.next_offset == 13
    assert [record.offset for record in unpack(memoryview(bytes(data)))] == [0, 7, 9]


def test_what_is_unpacked_here_is_what_aiokafka_unpacks() -> None:
    """Of every codec that both read."""
    for data in ODD.values():
        ours = unpack(memoryview(data))
        theirs = list(FetchedBatches(data).next_batch())
        assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in ours] == [
            (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs
        ]
