"""Raw topics that change while they are milled: one is made compacted, or gets partitions.

Kafka removes records from the middle of a compacted log, and nobody can find out later what a chain missed. Whether a
topic is compacted is checked when a worker starts (`app.kafka.topics.require_topics`); here it is checked
again and again. A new partition of a raw topic needs one in each of its token topics before it is milled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


class CompactionWatch:
    """Finds raw topics that must not be milled on, because they or topics of their streams are compacted."""

    def __init__(
        self, settings: Settings, topics: Mapping[str, Sequence[str]], changed: Callable[[Mapping[str, str]], None]
    ) -> None:
        """Watch ``topics``; ``changed`` is called with `refused` when that changes.

        ``topics`` are, for each raw topic, itself and those of its streams.
        """
        self.refused: Mapping[str, str] = {}
        """By raw topic, what is compacted and what to do."""
        self._settings = settings
        self._topics = topics
        self._changed = changed

    async def run(self) -> None:
        """Look until cancelled; a look that the brokers do not answer, or do not allow, changes nothing."""
        said = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
                said = ""
            except (BrokerError, KafkaError) as error:
                log.debug("topics cannot be looked at now", error=repr(error))
            except TopicError as error:
                if str(error) != said:
                    log.warning("topics cannot be looked at", error=str(error))
                said = str(error)

    async def _look(self) -> None:
        """Look once.

        Raises BrokerError or KafkaError where no broker answers, and TopicError where they do not describe a topic.
        """
        async with admin(self._settings) as client:
            names = {name for names in self._topics.values() for name in names}
            existing = await describe_topics(client, sorted(names))
        compacted = {name for name, found in existing.items() if is_compacted(found)}
        refused = {
            raw_topic: ", ".join(f"topic {name} {COMPACTED}" for name in names if name in compacted)
            for raw_topic, names in self._topics.items()
            if compacted.intersection(names)
        }
        if refused != self.refused:
            self.refused = refused
            self._changed(refused)


class PartitionGrowth:
    """Adds the partitions that the token topics of one raw topic lack."""

    def __init__(self, settings: Settings, topics: Sequence[str], know: Callable[[str, int], Awaitable[None]]) -> None:
        """``know(topic, partition)`` makes the producer learn of a partition."""
        self._settings = settings
        self._topics = topics
        self._know = know
        self._count = 0
        self._lock = asyncio.Lock()

    async def require(self, partition: int) -> None:
        """Return when each of the topics has ``partition``, which the raw topic has, and messages can be sent there.

        Several workers may do this at once. Raises TopicError where the partition is missing and the brokers do not let
        us add it, and BrokerError where no broker answers.
        """
        async with self._lock:
            if partition >= self._count:
                await self._look()
            if partition >= self._count:
                added = await ensure_topics(self._settings)
                log.info("partitions added", topics=added)
                await self._look()
        for topic in self._topics:
            await self._know(topic, partition)

    async def _look(self) -> None:
        counts = [await partition_count(self._settings, topic) for topic in self._topics]
        self._count = min(counts)
