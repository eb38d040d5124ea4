"""Raw topics that change while they are milled: one is made compacted, or gets partitions.

Kafka removes records from the middle of a compacted log, and later it cannot be found out what a chain missed. Whether
a topic is compacted is checked when a worker starts (`app.kafka.topics.require_topics`); here it is checked again and
again. A new partition of a raw topic needs one in each of its token topics before it is milled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, TopicError

from ..kafka.clients import admin
from ..kafka.topics import describe_topics, ensure_topics, is_compacted, partition_count
from ..settings import Settings

LOOK_SECONDS: Final = 20.0
"""How often it is looked: within a minute it is known. Kafka cleans a log seldom, and never its newest records."""
COMPACTED: Final = (
    "has been made compacted, so records vanish in between: set cleanup.policy=delete. Its partitions go on by "
    "themselves then; `tokenmill verify` says whether anything that was milled has vanished"
)

log = structlog.get_logger(__name__)


async def watch_compaction(
    settings: Settings, topics: Mapping[str, Sequence[str]], changed: Callable[[Mapping[str, str]], None]
) -> None:
    """Look until cancelled for raw topics that must not be milled on, because they or their streams' are compacted.

    ``topics`` are, for each raw topic, itself and those of its streams. ``changed`` is called with what is compacted
    and what to do, by raw topic, whenever that changes. A look that the brokers do not answer, or do not allow, changes
    nothing.
    """
    known: Mapping[str, str] = {}
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
            if refused != known:
                known = refused
                changed(refused)


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
        counts = [await partition_count(self.settings, topic) for topic in self.topics]
        self._count = min(counts)
