"""Open blocks of packings that have several: read again at a resume, and written by value before retention takes them.

Messages hold these blocks by reference to raw records (`tokenmill.wire.pieces`). Where the raw log may soon lose
one of them, carries hold the blocks by value, and a resume begins with the last of these carries.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.reading.continuing import ResumePoint
from tokenmill.records import SourceRecord

from ..kafka.clients import admin, offsets, read_batches
from ..kafka.retry import ask_repeatedly
from ..kafka.topics import UNLIMITED, describe_topics
from ..milling.packing.reopening import Reopening
from ..settings import Settings

LOOK_SECONDS: Final = 10.0
"""How soon is seen how far retention may go next; it takes minutes to anything that matters here."""


Mill = Callable[[Sequence[SourceRecord], Callable[[Sequence[SourceRecord]], None]], Awaitable[None]]
"""Is given records and what mills them, which it calls in a thread, with some of them at a time."""


async def reopened(client: AIOKafkaConsumer, raw: TopicPartition, reopening: Reopening, mill: Mill) -> ResumePoint:
    """Return the point of a chain's tail with the tokens of its open blocks, whose records are read and milled again.

    Only this call uses ``client`` meanwhile.

    Raises:
        SourceError: a record is another one than it was.
        MovedError: retention has passed one.
        EngineError, PanicError: as `PartitionMill.feed`.

    """
    for start, end in reopening.ranges:
        async for fetched in read_batches(client, raw, start, end):
            if records := reopening.wanted(fetched):
                await mill(records, reopening.take)
    return reopening.point()


async def watch_retention(
    settings: Settings,
    owned: Callable[[], Sequence[TopicPartition]],
    tell: Callable[[Mapping[TopicPartition, int]], None],
) -> None:
    """Call ``tell`` again and again with the offset of each ``owned`` partition below which records are in danger."""

    async def ask(client: AIOKafkaConsumer) -> None:
        if partitions := owned():
            tell(await endangered_below(settings, client, partitions))

    await ask_repeatedly(settings, ask, LOOK_SECONDS, "the retention of raw topics cannot be looked at now")


async def endangered_below(
    settings: Settings, client: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return of each partition below which offset its records are in danger: half of their retention has passed.

    By age where time limits it, by number where size does; 0 where nothing does.
    """
    async with admin(settings) as asked:
        existing = await describe_topics(asked, sorted({tp.topic for tp in partitions}))
    held = await offsets(client, list(partitions))
    found = {}
    for tp in partitions:
        configs, below = existing[tp.topic].configs if tp.topic in existing else {}, 0
        milliseconds = configs.get("retention.ms", UNLIMITED)
        if milliseconds != UNLIMITED:
            then = int(time.time() * 1000) - int(milliseconds) // 2
            place = (await client.offsets_for_times({tp: max(0, then)}))[tp]
            below = place.offset if place is not None else held[tp][1]
        if configs.get("retention.bytes", UNLIMITED) != UNLIMITED:
            below = max(below, sum(held[tp]) // 2)
        found[tp] = below
    return found
