"""Verdicts on all partitions that a mill worker owns, read with one client and handed out as they come."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.records import SourceRecord

from ..kafka.fetched_batches import unpacked
from ..kafka.retry import ask_repeatedly
from ..settings import Settings

AGAIN_SECONDS: Final = 0.1
"""How soon is tried again what failed, and how soon a partition is read that was added while there was none."""
POLL_MS: Final = 200
"""How soon another one is."""
NO_END: Final = 1 << 62


@dataclass(slots=True)
class _Reader:
    offset: int
    deliver: Callable[[Sequence[SourceRecord]], None]


class VerdictFeed:
    """Hands out what is behind a place of each partition that was added, while `run` runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: dict[TopicPartition, _Reader] = {}
        self._changes = 0

    def add(self, verdicts: TopicPartition, offset: int, deliver: Callable[[Sequence[SourceRecord]], None]) -> None:
        """Hand out the records of a partition from an offset on, in their order."""
        self._readers[verdicts] = _Reader(offset, deliver)
        self._changes += 1

    def remove(self, verdicts: TopicPartition) -> None:
        """Hand out nothing more of a partition."""
        self._changes += self._readers.pop(verdicts, None) is not None

    async def run(self) -> None:
        """Read until cancelled. Raises OffsetOutOfRangeError where a log no longer has what comes next."""
        await ask_repeatedly(self._settings, self._follow, AGAIN_SECONDS, "verdicts cannot be read now")

    async def _follow(self, client: AIOKafkaConsumer) -> None:
        """Read the partitions that there are, until these are others."""
        changes, readers = self._changes, dict(self._readers)
        if not readers:
            return
        client.assign(list(readers))
        for verdicts, reader in readers.items():
            client.seek(verdicts, reader.offset)
        while changes == self._changes:
            for verdicts, batches in (await client.getmany(timeout_ms=POLL_MS)).items():
                records = await asyncio.to_thread(unpacked, batches, NO_END)
                readers[verdicts].offset = await client.position(verdicts)
                if records and self._readers.get(verdicts) is readers[verdicts]:
                    readers[verdicts].deliver(records)
