"""The skip list of one mill's streams, as the owner of a partition keeps it.

A person asks (`app.tools.skip_and_ignore`); the owner of the partition decides: it alone knows what it has
published. It takes a request over when it resumes, before it mills anything, and only where no chain has passed the
record; what it took over is on every stream's control topic before a record is milled. So a record was either
milled by all or skipped by all who read the control topics afterwards: workers, the reference, verification.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog
from aiokafka import AIOKafkaConsumer

from tokenmill.wire.chain import Cursor

from ..kafka.control_log import skip_record
from ..kafka.control_topic import Settled, read_on, write_control
from ..settings import Settings

log = structlog.get_logger(__name__)


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
        """Read on to the ends of the control topics; Only this call uses ``client`` meanwhile."""
        await read_on(client, {settled.stream.control_topic: settled.control for settled in self.streams})

    def in_force(self, partition: int) -> frozenset[int]:
        """Return the offsets that are skipped."""
        return frozenset().union(*(settled.control.skips.get(partition, ()) for settled in self.streams))

    def wanted(self, partition: int, cursors: Collection[Cursor]) -> list[int]:
        """Return the offsets that a person wants skipped, that are not yet, and that no chain has passed.

        ``cursors`` are where the chains of the partition have been published to.
        """
        asked: set[int] = set().union(*(s.control.skip_requests.get(partition, ()) for s in self.streams))
        everywhere = [settled.control.skips.get(partition, ()) for settled in self.streams]
        return sorted(
            offset
            for offset in asked
            if not any(has_passed(cursor, offset) for cursor in cursors)
            and not all(offset in skips for skips in everywhere)
        )

    async def settle(self, client: AIOKafkaConsumer, partition: int, cursors: Collection[Cursor]) -> frozenset[int]:
        """Take over what is wanted and return what is in force; for the partition's owner, before it mills.

        When this returns, what it returned is on the control topics.
        """
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
