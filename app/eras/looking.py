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
    """Read to the end; what one fetch brings stood there at one time, and so did the head if it stands after it."""
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
        batch = await _batch(client, partition, batch[-1].offset + 1, end)
        if batch and not await _stands(client, partition, follower):
            raise MovedError(f"{topic} lost its tail while it was read")
    follower.finish()
    return found


async def _batch(client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> list[LogRecord]:
    """Return the records of one fetch from ``start`` on; none where there are no more before ``end``."""
    batch = await anext(read_batches(client, partition, start, end), None) or ()
    return [LogRecord(record.offset, record.key, record.value) for record in batch]


async def _stands(client: AIOKafkaConsumer, partition: TopicPartition, follower: EraFollower) -> bool:
    """Return whether the last era that was read stands there still.

    Else the log may have lost it between two fetches, and the second may have brought one that continues it: a chain
    that never stood there.
    """
    at = follower.position
    if at is None:
        return True
    batch = await _batch(client, partition, at, at + 1)
    return follower.holds(batch[0] if batch else None)
