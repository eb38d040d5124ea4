"""Reading the eras on a control topic, again and again."""

from collections.abc import AsyncIterator
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import Era, EraFollower, LogRecord
from tokenmill.errors import MovedError

from ..clients.kafka import offsets, read_range

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
    partition = TopicPartition(topic, 0)
    span = (await offsets(client, [partition]))[partition]
    start = follower.position
    if start is not None and not follower.holds(await anext(_records(client, partition, start, span), None)):
        follower.restart()
        start = None
    found = []
    async for record in _records(client, partition, start, span):
        era = follower.add(record)
        if era is not None:
            found.append((era, record.offset))
    follower.finish()
    return found


async def _records(
    client: AIOKafkaConsumer, partition: TopicPartition, start: int | None, span: tuple[int, int]
) -> AsyncIterator[LogRecord]:
    """Yield the records from ``start`` on (None: from the first); none where the log ends before."""
    first, end = span
    async for record in read_range(client, partition, first if start is None else max(first, start), end):
        yield LogRecord(record.offset, record.key, record.value)
