"""Reading the eras on a control topic, again and again."""

from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import Era, EraFollower, LogRecord
from tokenmill.errors import MovedError

from ..clients.kafka import offsets, read_batches

ATTEMPTS: Final = 3
"""Looks in a row at a log that moves: each takes a moment, so that the second or third finds it at rest."""


async def look(client: AIOKafkaConsumer, topic: str, follower: EraFollower) -> list[tuple[Era, int]]:
    """Read the control ``topic`` from the follower's position to its end; return the new eras, and their offsets.

    ``client`` is used by nobody else meanwhile. Whatever is raised, the follower stands where it stood.

    Raises:
        DifferenceError: the era that was seen last is not on the topic any more.
        MovedError: the topic lost its tail again and again while it was read.

    """
    for attempt in range(ATTEMPTS):
        last, position = follower.log.last, follower.position
        try:
            return await _look(client, topic, follower)
        except BaseException as error:
            follower.rewind(last, position)
            if not isinstance(error, MovedError) or attempt == ATTEMPTS - 1:
                raise
    return []


async def _look(client: AIOKafkaConsumer, topic: str, follower: EraFollower) -> list[tuple[Era, int]]:
    """Read to the end; what one fetch brings stood there at one time, and so did all before it if its last stands."""
    partition = TopicPartition(topic, 0)
    first, end = (await offsets(client, [partition]))[partition]
    start = follower.position
    batch = await _batch(client, partition, first if start is None else max(first, start), end)
    if start is not None and not follower.holds(batch[0] if batch else None):
        follower.restart()
        batch = await _batch(client, partition, first, end)
    found = []
    while batch:
        for record in batch:
            era = follower.add(record)
            if era is not None:
                found.append((era, record.offset))
        last = batch[-1]
        batch = await _batch(client, partition, last.offset + 1, end)
        if batch and not await _stands(client, partition, last):
            raise MovedError(f"{topic} lost its tail while it was read")
    follower.finish()
    return found


async def _batch(client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> list[LogRecord]:
    """Return the records of one fetch from ``start`` on; none where there are no more before ``end``."""
    batch = await anext(read_batches(client, partition, start, end), None) or ()
    return [LogRecord(record.offset, record.key, record.value) for record in batch]


async def _stands(client: AIOKafkaConsumer, partition: TopicPartition, last: LogRecord) -> bool:
    """Return whether the last record of the fetch before stands there still, and so all that was read before it.

    Else the log may have lost its tail between two fetches, and the second may have brought an era that continues what
    was read, but not what stands there. It does not matter whether the record is an era: where one that was ignored was
    lost, another may have become the next era in its place, and the one that the second fetch brought came too late.
    """
    return last in await _batch(client, partition, last.offset, last.offset + 1)
