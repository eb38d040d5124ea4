"""What a broker took is read, each record at the offset that it has there; and as aiokafka reads it, where that can."""

import gzip
import time
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TopicFactory
from tests.odd_batches import GOOD, GZIP, LZ4, NOW, ODD, SNAPPY, batch, record, send_batch, send_through
from tokenmill.app.kafka.clients import consumer, offsets, producer, read_range
from tokenmill.app.kafka.fetched_batches import HEAD, FetchedBatches, FetchedRecords, PackedBatch, unpack, unpacked
from tokenmill.app.settings import Settings
from tokenmill.documents import SourceRecord

PARTITION = TopicPartition("raw", 3)
END = 1 << 62
(THEIRS,) = FetchedRecords.__bases__
"""aiokafka's class, which ours stands for."""

small = st.none() | st.binary(max_size=40)
records = st.tuples(small, st.none() | st.binary(max_size=300), st.lists(st.tuples(st.text(max_size=5), small)))
batches = st.tuples(st.lists(records, min_size=1, max_size=8), st.sampled_from([0, 1, 3, 4]), st.integers(0, 3))
"""Records, the codec that packs them, and how many offsets after the batch hold nothing."""


def fetch_of(found: list[tuple[list[Any], int, int]]) -> bytes:
    data, offset = b"", 7
    for contents, codec, gap in found:
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 10**9)
        for number, (key, value, headers) in enumerate(contents):
            builder.append(number, 1000 + number, key, value, headers)
        batch = bytearray(builder.build())
        batch[:8] = offset.to_bytes(8)  # the broker's; not covered by the checksum
        data, offset = data + bytes(batch), offset + len(contents) + gap
    return data


def taken(records: Any) -> list[tuple[Any, ...]]:
    return [(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in records]


def theirs(data: bytes, position: int = 0) -> Any:
    return THEIRS(PARTITION, MemoryRecords(data), None, position, None, None, True, READ_COMMITTED)


def ours(data: bytes | memoryview, position: int = 0) -> FetchedRecords:
    return FetchedRecords(PARTITION, FetchedBatches(data), None, position, None, None, True, READ_COMMITTED)


@given(st.lists(batches, max_size=4), st.integers(0, 25), st.integers(0, 30))
@pytest.mark.slow
def test_records_are_those_that_aiokafka_unpacks(found: list[Any], position: int, cut: int) -> None:
    data = fetch_of(found)
    data = data[: max(0, len(data) - cut)]
    expected = theirs(data, position)
    mine = ours(memoryview(data), position)
    assert taken(unpacked(mine, END)) == taken(list(expected))
    assert mine.next_fetch_offset == expected.next_fetch_offset
    assert FetchedBatches(data).has_next() == MemoryRecords(data).has_next()


@given(st.lists(batches, max_size=4), st.integers(0, 30))
@pytest.mark.slow
def test_batches_are_unpacked_as_far_as_they_are_wanted(found: list[Any], end: int) -> None:
    data = fetch_of(found)
    packed: list[PackedBatch] = list(ours(data))
    expected = list(theirs(data))
    assert taken(unpacked(packed, end)) == taken(one for one in expected if one.offset < end)
    assert taken(unpacked(expected, end)) == taken(one for one in expected if one.offset < end)
    for one in packed:
        if one.first >= end:
            assert taken(one.unpack()) == taken(record for record in expected if one.first <= record.offset < one.end)


@given(batches, st.data())
@pytest.mark.slow
def test_a_changed_batch_is_refused(batch: Any, data: st.DataObject) -> None:
    wrong = bytearray(fetch_of([batch]))
    bit = data.draw(st.integers((HEAD.size - 4) * 8, len(wrong) * 8 - 1))
    wrong[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecordException, match=r"offset 7 of raw\[3\]: the batch fails its CRC"):
        list(ours(bytes(wrong)))
    assert FetchedBatches(bytes(wrong)).next_batch(PARTITION, check=False).base_offset == 7


@pytest.mark.parametrize("version", [0, 1])
def test_logs_of_old_brokers_are_read(version: int) -> None:
    builder = LegacyRecordBatchBuilder(version, 0, 10**6)
    builder.append(0, timestamp=1000, key=b"key", value=b"value")
    right = bytes(builder.build())
    values = [[record.value for record in records] for records in (unpacked(ours(right), END), theirs(right))]
    assert values == [[b"value"]] * 2
    with pytest.raises(CorruptRecordException, match=r"offset 0 of raw\[3\]"):
        list(ours(right[:-1] + b"x"))


async def read_all(settings: Settings, partition: TopicPartition) -> list[SourceRecord]:
    async with consumer(settings) as client:
        span = (await offsets(client, [partition]))[partition]
        return [record async for record in read_range(client, partition, *span)]


@pytest.mark.usefixtures("both_ways")
async def test_nothing_in_a_record_beside_its_value_ends_a_fetch(settings: Settings, topic: TopicFactory) -> None:
    partition = TopicPartition(topic(), 0)
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
    for data in ODD.values():
        assert taken(unpack(memoryview(data))) == taken(FetchedBatches(data).next_batch())


@pytest.mark.usefixtures("both_ways")
async def test_a_name_of_a_header_is_text_whatever_its_bytes(settings: Settings, topic: TopicFactory) -> None:
    partition = TopicPartition(topic(), 0)
    headers = [(b"caf\xe9", b"1"), ("café".encode(), b"\xff"), (b"", None)]
    await send_batch(settings, partition.topic, batch([record(0, b"x", key=b"k", headers=headers, later=3)]))
    (found,) = await read_all(settings, partition)
    assert list(found.headers) == [("caf\\xe9", b"1"), ("café", b"\xff"), ("", None)]
    assert (found.key, found.value, found.timestamp) == (b"k", b"x", NOW + 3)


def test_a_batch_that_no_broker_takes_is_refused() -> None:
    for codec in (GZIP, SNAPPY, LZ4, 4, 5):
        with pytest.raises(CorruptRecordException, match="offset 0: the batch cannot be unpacked"):
            list(FetchedBatches(batch([record(0, b"x")], codec, lambda data: b"\x82SNAPPY\0" + data)).next_batch())
    cut = batch([record(0, b"x" * 100)], 0, lambda data: data[:-50])
    with pytest.raises(CorruptRecordException, match="offset 0: the batch cannot be unpacked"):
        unpack(memoryview(cut))
    with pytest.raises(CorruptRecordException, match="are no batch"):  # too short to be one
        list(ours(bytes(8) + (2).to_bytes(4) + bytes(2)))


def test_a_batch_of_empty_members_of_gzip_takes_no_square_of_time() -> None:
    """200,000 of them, before records at offsets that aiokafka's own code gives up on."""
    members = gzip.compress(b"") * 200_000
    found = batch([record(0, GOOD), record(7, GOOD)], GZIP, lambda data: members + gzip.compress(data))
    began = time.process_time()
    assert [one.offset for one in unpack(memoryview(found))] == [0, 1]
    assert time.process_time() - began < 10


def test_records_of_a_compacted_log_keep_their_offsets() -> None:
    data = bytearray(batch([record(0, b"x"), record(7, b"y"), record(9, b"z")]))
    data[23:27] = (12).to_bytes(4)  # the last offset, which says more than the number of records
    read = FetchedBatches(bytes(data)).next_batch()
    assert [record.offset for record in read] == [0, 7, 9]
    assert read.next_offset == 13
    assert [record.offset for record in unpack(memoryview(bytes(data)))] == [0, 7, 9]
