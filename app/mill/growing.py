"""Raw topics that get partitions: whoever mills a new one first sees to it that its streams have it as well."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from ..kafka.topics import ensure_topics, partition_count
from ..settings import Settings

log = structlog.get_logger(__name__)


class TokenPartitions:
    """Knows how many partitions the token topics of one raw topic have, and adds those that are missing."""

    def __init__(self, settings: Settings, topics: Sequence[str], know: Callable[[str, int], Awaitable[None]]) -> None:
        """Know nothing yet; ``know(topic, partition)`` makes the one who sends learn of a partition."""
        self._settings = settings
        self._topics = topics
        self._know = know
        self._count = 0
        self._lock = asyncio.Lock()

    async def require(self, partition: int) -> None:
        """Return when each of the topics has ``partition``, which the raw topic has, and messages can be sent there.

        Several workers may do this at once.

        Raises:
            TopicError: the partition is missing and the brokers do not let us add it.
            BrokerError: no broker answers.

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
