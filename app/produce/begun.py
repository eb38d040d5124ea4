"""That a run has begun, and where the topic ended then: kept by Kafka as the offsets of a consumer group.

Marks of the run are looked for from there on (`tokenmill.app.produce.tails`). Nobody consumes with that group, and
Kafka forgets it `offsets.retention.minutes` after it was written: so every call writes it again, and so do long ones.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
)
from aiokafka.structs import OffsetAndMetadata

from tokenmill.errors import BrokerError, TokenMillError

from ..clients.kafka import admin, consumer
from ..settings import Settings
from .identity import Identity

COORDINATOR_SECONDS: Final = 30.0
"""How long the brokers may take to name a coordinator: a new cluster's first group waits for its topic to be made."""
KEEP_SECONDS: Final = 3600.0
"""Until a beginning is written again: a small part of the shortest time that anybody would have Kafka keep offsets."""

log = structlog.get_logger(__name__)


class Begun(NamedTuple):
    """A run's beginning."""

    milliseconds: int
    """Unix time."""
    sources: str
    """`Identity.sources` then."""
    source_count: int
    """How many there were then."""
    offsets: dict[int, int]
    """The end of each partition then; the run's documents go to these partitions, though there may be more by now."""


def group_name(settings: Settings, identity: Identity) -> str:
    """Return the run's name on the brokers, for its group and its transactional id."""
    return f"{settings.group}.produce.{identity.run}"


async def read_begun(settings: Settings, group: str, topic: str) -> Begun | None:
    """Return the run's beginning, None where Kafka knows of none.

    Raises:
        BrokerError: no broker answers.

    """
    found = await _committed(settings, group)
    offsets: dict[int, int] = {}
    notes = set()
    for partition, committed in found.items():
        if partition.topic == topic and committed.offset >= 0:
            offsets[partition.partition] = committed.offset
            notes.add(committed.metadata)
    if len(notes) != 1 or sorted(offsets) != list(range(len(offsets))):
        return None  # nothing, or a commit that was cut off: nothing was sent then
    try:
        milliseconds, sources, count, partitions = orjson.loads(notes.pop())
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return None
    return Begun(milliseconds, sources, count, offsets) if partitions == len(offsets) else None


async def _committed(settings: Settings, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Return what is committed, once the brokers have somebody who knows."""
    deadline = time.monotonic() + COORDINATOR_SECONDS
    async with admin(settings) as client:
        while True:
            try:
                return await client.list_consumer_group_offsets(group)  # type: ignore[no-any-return]
            except (
                GroupCoordinatorNotAvailableError,
                GroupLoadInProgressError,
                NotCoordinatorForGroupError,
            ) as error:
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"the brokers name no coordinator for group {group}: see their logs for __consumer_offsets"
                    ) from error
                await asyncio.sleep(0.1)


async def write_begun(settings: Settings, group: str, topic: str, begun: Begun) -> None:
    """Write the run's beginning down; on return Kafka has it, and knows it as long as it keeps offsets from now on.

    Raises:
        BrokerError: no broker answers.

    """
    async with consumer(settings, group_id=group) as client:
        await _commit(client, topic, begun)


async def renew_begun(settings: Settings, group: str, topic: str, begun: Begun) -> bool:
    """Write the same beginning again; False, and nothing is written, where another call has begun the run anew.

    Raises:
        BrokerError: no broker answers.

    """
    async with consumer(settings, group_id=group) as client:  # before it looks: milliseconds lie between that and this
        known = await read_begun(settings, group, topic)
        if known not in (None, begun):
            return False
        await _commit(client, topic, begun)
    return True


async def keep_begun(settings: Settings, group: str, topic: str, begun: Begun) -> None:
    """Renew the run's beginning from time to time, for Kafka forgets what was written long ago.

    To be cancelled when the run ends; returns where another call has begun the run anew. Where the brokers do not
    answer it says so, and tries again the next time.
    """
    while True:
        await asyncio.sleep(KEEP_SECONDS)
        try:
            if not await renew_begun(settings, group, topic, begun):
                return
        except (TokenMillError, KafkaError) as error:
            log.warning(
                "when this run began could not be written down again; should that go on for days, it cannot be resumed",
                group=group,
                error=str(error) or repr(error),
            )


async def _commit(client: AIOKafkaConsumer, topic: str, begun: Begun) -> None:
    note = orjson.dumps([begun.milliseconds, begun.sources, begun.source_count, len(begun.offsets)]).decode()
    offsets = {TopicPartition(topic, number): OffsetAndMetadata(end, note) for number, end in begun.offsets.items()}
    client.assign(list(offsets))
    await client.commit(offsets)
