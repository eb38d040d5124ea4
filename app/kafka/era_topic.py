"""Reading the eras on a control topic, again and again."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import ERA_KEY, Era, EraFollower, LogRecord, why_no_era
from tokenmill.errors import MovedError

from .clients import offsets, read_batches
from .control_topic import name_junk

ATTEMPTS: Final = 3
"""Looks in a row at a log that moves: each takes a moment, so that the second or third finds it at rest."""

Found = Sequence[tuple[Era, int]]
"""Eras that follow each other, and their offsets."""


async def look(
    client: AIOKafkaConsumer, topic: str, follower: EraFollower, end: int | None = None
) -> AsyncIterator[Found]:
    """Read the control ``topic`` from the follower's position to its end, or to ``end``; yield the new eras.

    They come fetch by fetch, never none, in bounded memory. ``client`` is used by nobody else meanwhile. Whatever is
    raised, the follower stands behind what was yielded last, so that the next look goes on there. A record that came as
    an era and is none of any stream is counted, and named once in the log of this process.

    Raises:
        DifferenceError: the era that was seen last is not on the topic any more.
        MovedError: the topic lost its tail again and again while it was read, or ends before ``end``.

    """
    given = follower.standing
    for attempt in range(ATTEMPTS):
        fetches = _look(client, topic, follower, end)
        while True:
            try:
                found = await anext(fetches, None)
            except BaseException as error:
                follower.rewind(given)
                if not isinstance(error, MovedError) or attempt == ATTEMPTS - 1:
                    raise
                break
            if found is None:
                return
            if found:
                given = follower.standing
                yield found


async def _look(client: AIOKafkaConsumer, topic: str, follower: EraFollower, end: int | None) -> AsyncIterator[Found]:
    """Read to the end; what one fetch brings stood there at one time, and so did all before it if its last stands."""
    partition = TopicPartition(topic, 0)
    first, last_end = (await offsets(client, [partition]))[partition]
    end = last_end if end is None else end
    start = follower.position
    batch = await _batch(client, partition, first if start is None else max(first, start), end)
    known = start is not None and follower.holds(batch[0] if batch else None)
    if start is not None and not known:
        follower.restart()
        batch = await _batch(client, partition, first, end)
    while batch:
        eras = [(_added(follower, topic, record), record.offset) for record in batch[known:]]
        known = False
        yield [(era, offset) for era, offset in eras if era is not None]
        last = batch[-1]
        batch = await _batch(client, partition, last.offset + 1, end)
        if batch and not await _stands(client, partition, last):
            raise MovedError(f"{topic} lost its tail while it was read")
    follower.finish()


def _added(follower: EraFollower, topic: str, record: LogRecord) -> Era | None:
    era = follower.add(record)
    if era is None and record.key == ERA_KEY and (why := why_no_era(record.value)) is not None:
        name_junk(topic, record.offset, record.key, why)
    return era


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
