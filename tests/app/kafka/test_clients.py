"""Kafka clients: ranges of a log are read to their end and no further."""

import asyncio
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaConnectionError

from tests.conftest import TopicFactory
from tokenmill.app.kafka import clients as kafka
from tokenmill.app.kafka.clients import LastLook, admin, consumer, offsets, producer, read_range
from tokenmill.app.settings import Settings
from tokenmill.errors import BrokerError, SourceError


async def values(settings: Settings, partition: TopicPartition, start: int, end: int) -> list[bytes | None]:
    async with consumer(settings) as client:
        return [record.value async for record in read_range(client, partition, start, end)]


async def fill(settings: Settings, topic: str) -> None:
    """Write two committed transactions around an aborted one, and another aborted one at the end.

    Offsets: 0-1 and a marker, 3-4 aborted and a marker, 6-7 and a marker, 9-10 aborted and a marker.
    """
    async with producer(settings, transactional_id=topic) as client:
        for number in range(4):
            await client.begin_transaction()
            for letter in b"ab":
                await client.send(topic, b"%d%c" % (number, letter), partition=0)
            await (client.abort_transaction() if number % 2 else client.commit_transaction())


async def test_range_ends_where_its_last_offsets_hold_no_record(settings: Settings, topic: TopicFactory) -> None:
    """Markers and aborted records at the end of a range do not make a reader wait for ever."""
    partition = TopicPartition(topic(), 0)
    await fill(settings, partition.topic)
    async with consumer(settings) as client:
        assert await offsets(client, [partition]) == {partition: (0, 12)}
    assert await values(settings, partition, 0, 12) == [b"0a", b"0b", b"2a", b"2b"]
    assert await values(settings, partition, 0, 6) == [b"0a", b"0b"]
    assert await values(settings, partition, 1, 7) == [b"0b", b"2a"]
    assert await values(settings, partition, 12, 12) == []


async def test_range_that_the_log_does_not_hold_is_refused(settings: Settings, topic: TopicFactory) -> None:
    """A reader never jumps to what is there instead, and never waits for what cannot come."""
    partition = TopicPartition(topic(), 0)
    await fill(settings, partition.topic)
    async with admin(settings) as client:
        await client.delete_records({partition: RecordsToDelete(before_offset=6)})
    assert await values(settings, partition, 6, 12) == [b"2a", b"2b"]
    for start, end in ((0, 12), (6, 13), (40, 50)):
        with pytest.raises(SourceError, match="holds offsets 6 to 12"):
            await values(settings, partition, start, end)


@pytest.mark.slow
async def test_every_client_names_a_missing_broker() -> None:
    nowhere = Settings(bootstrap_servers="127.0.0.1:1")
    for client in (producer, consumer, admin):
        with pytest.raises(
            BrokerError, match=r"no broker answers at 127\.0\.0\.1:1; start one with `tokenmill broker start`"
        ):
            async with client(nowhere):
                pass


async def test_large_records_pass(settings: Settings, topic: TopicFactory) -> None:
    partition = TopicPartition(topic(max_message_bytes=settings.max_record_bytes + 1000), 0)
    async with producer(settings) as client:
        await client.send_and_wait(partition.topic, bytes(settings.max_record_bytes), partition=0)
    assert await values(settings, partition, 0, 1) == [bytes(settings.max_record_bytes)]


async def test_a_client_that_cancels_itself_cancels_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one wait for a client that never ends; an error of its own is heard."""
    monkeypatch.setattr(kafka, "STOP_SECONDS", 0.05)

    async def endless() -> None:
        await asyncio.Event().wait()

    for stop in (AsyncMock(side_effect=asyncio.CancelledError), endless):
        await kafka._end(stop)
    with pytest.raises(KafkaConnectionError):
        await kafka._end(AsyncMock(side_effect=KafkaConnectionError))


async def test_a_look_is_spared_while_partitions_hold_what_they_did(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, look = TopicPartition(topic(), 0), LastLook()

    async def spared(*, rests: bool = True) -> bool:
        found = await look.finds_nothing(reader, [partition])
        if not found:
            look.took(rests=rests)
        return found

    async with consumer(settings) as reader, producer(settings) as writer:
        assert [await spared(), await spared(), await spared()] == [False, True, True]
        await writer.send_and_wait(partition.topic, b"a", partition=0)
        assert [await spared(rests=False), await spared(), await spared()] == [False, False, True]
        assert not await look.finds_nothing(reader, [])
        monkeypatch.setattr(kafka, "WHOLE_LOOK_SECONDS", 0.0)
        await writer.send_and_wait(partition.topic, b"b", partition=0)
        assert [await spared(), await spared()] == [False, False]
