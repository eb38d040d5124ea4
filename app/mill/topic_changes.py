"""Raw topics that change while they are milled: one is made compacted, gets partitions, or loses its oldest records.

Kafka removes records from the middle of a compacted log, and later it cannot be found out what a chain missed. Whether
a topic is compacted is checked when a worker starts (`app.kafka.topics.require_topics`); here it is checked again and
again. A new partition of a raw topic needs one in each of its token topics before it is milled. Messages may hold open
blocks by reference to raw records (`tokenmill.wire.pieces`): before retention takes one of these, carries hold them by
value, and a resume begins with the last of these carries.

`SkipList` are the records that people leave out. A person asks (`app.tools.failed_records`); the owner of the
partition decides: it alone knows what it has published. It takes a request over when it resumes, before it mills
anything, and only where no chain has passed the record; what it took over is on every stream's control topic before a
record is milled. So a record was either milled by all or skipped by all who read the control topics afterwards:
workers, the reference, verification.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, TopicError
from tokenmill.wire.chain import Cursor

from ..kafka.clients import admin, offsets
from ..kafka.control_log import skip_record
from ..kafka.control_topic import Settled, read_on, write_control
from ..kafka.topics import UNLIMITED, describe_topics, ensure_topics, is_compacted, partition_count
from ..settings import Settings

LOOK_SECONDS: Final = 20.0
"""How often it is looked: within a minute it is known. Kafka cleans a log seldom, and never its newest records."""
RETENTION_LOOK_SECONDS: Final = 10.0
"""How soon is seen how far retention may go next; it takes minutes to anything that matters here."""
COMPACTED: Final = (
    "has been made compacted, so records vanish in between: set cleanup.policy=delete. Its partitions go on by "
    "themselves then; `tokenmill verify` says whether anything that was milled has vanished"
)

log = structlog.get_logger(__name__)


async def watch_compaction(
    settings: Settings, topics: Mapping[str, Sequence[str]], heed: Callable[[Mapping[str, str]], None]
) -> None:
    """Look until cancelled for raw topics that must not be milled on, because they or their streams' are compacted.

    ``topics`` are, for each raw topic, itself and those of its streams. ``heed`` is called after each look with what is
    compacted and what to do, by raw topic; not after one that the brokers do not answer, or do not allow.
    """
    said = ""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            refused = await _compacted(settings, topics)
            said = ""
        except (BrokerError, KafkaError) as error:
            log.debug("topics cannot be looked at now", error=repr(error))
        except TopicError as error:
            if str(error) != said:
                log.warning("topics cannot be looked at", error=str(error))
            said = str(error)
        else:
            heed(refused)


async def _compacted(settings: Settings, topics: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Return by raw topic what is compacted now and what to do; raises as `describe_topics`."""
    async with admin(settings) as client:
        existing = await describe_topics(client, sorted({name for names in topics.values() for name in names}))
    compacted = {name for name, found in existing.items() if is_compacted(found)}
    return {
        raw_topic: ", ".join(f"topic {name} {COMPACTED}" for name in names if name in compacted)
        for raw_topic, names in topics.items()
        if compacted.intersection(names)
    }


@dataclass
class PartitionGrowth:
    """Adds the partitions that the token topics of one raw topic lack."""

    settings: Settings
    topics: Sequence[str]
    know: Callable[[str, int], Awaitable[None]]
    """Makes the producer learn of a topic's partition."""
    _count: int = field(default=0, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def require(self, partition: int) -> None:
        """Return when each of the topics has ``partition``, which the raw topic has, and messages can be sent there.

        Several workers may do this at once. Raises TopicError where the partition is missing and the brokers do not let
        us add it, and BrokerError where no broker answers.
        """
        async with self._lock:
            if partition >= self._count:
                await self._look()
            if partition >= self._count:
                added = await ensure_topics(self.settings)
                log.info("partitions added", topics=added)
                await self._look()
        for topic in self.topics:
            await self.know(topic, partition)

    async def _look(self) -> None:
        self._count = min([await partition_count(self.settings, topic) for topic in self.topics])


async def endangered_below(
    settings: Settings, client: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return below which offset half of the retention of each partition has passed, by age or size; 0 without limit."""
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


def has_passed(cursor: Cursor, offset: int) -> bool:
    """Return whether what became of a record is settled: the cursor is past it, or in the middle of it."""
    return cursor.next_offset > offset or cursor.last_offset >= offset


@dataclass(frozen=True, slots=True)
class SkipList:
    """What the control topics of one raw topic's streams say of records to skip, as far as they have been read."""

    settings: Settings
    streams: Sequence[Settled]
    """With what was read of their control topics so far; `refresh` reads on."""

    async def refresh(self, client: AIOKafkaConsumer) -> None:
        """Read on to the ends of the control topics; only this call uses ``client`` meanwhile."""
        await read_on(client, {settled.stream.control_topic: settled.control for settled in self.streams})

    def in_force(self, partition: int) -> frozenset[int]:
        """Return the offsets that are skipped."""
        return frozenset().union(*(settled.control.skips.get(partition, ()) for settled in self.streams))

    def wanted(self, partition: int, cursors: Collection[Cursor]) -> list[int]:
        """Return what a person wants skipped that is not yet, and that no chain has passed, by their ``cursors``."""
        asked: set[int] = set().union(*(s.control.skip_requests.get(partition, ()) for s in self.streams))
        everywhere = [settled.control.skips.get(partition, ()) for settled in self.streams]
        return sorted(
            offset
            for offset in asked
            if not any(has_passed(cursor, offset) for cursor in cursors)
            and not all(offset in skips for skips in everywhere)
        )

    async def settle(self, client: AIOKafkaConsumer, partition: int, cursors: Collection[Cursor]) -> frozenset[int]:
        """Take over what is wanted, before the owner mills; return what is in force: control topics have it then."""
        await self.refresh(client)
        wanted = self.wanted(partition, cursors)
        for settled in self.streams if wanted else ():
            there = settled.control.skips.get(partition, ())
            records = [skip_record(partition, offset) for offset in wanted if offset not in there]
            await write_control(self.settings, settled.stream.control_topic, records)
            for record in records:
                settled.control.add(*record)
        if wanted:
            log.warning("record skipped", partition=partition, offset=wanted[0], last=wanted[-1], records=len(wanted))
        return self.in_force(partition)
