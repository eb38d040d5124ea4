"""That a run has begun, and where the topic ended then: kept by Kafka as the offsets of a consumer group.

Marks of the run are looked for from there on (`tokenmill.app.produce.tails`). Nobody consumes with that group.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
from aiokafka.structs import OffsetAndMetadata

from tokenmill.errors import BrokerError

from ..kafka import admin, consumer
from ..settings import Settings
from .identity import Identity

COORDINATOR_SECONDS: Final = 30.0
"""How long the brokers may take to name a coordinator: a new cluster's first group waits for its topic to be made."""


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


async def write_begun(settings: Settings, group: str, topic: str, identity: Identity, ends: Mapping[int, int]) -> Begun:
    """Keep that the run begins now; on return Kafka has it.

    Raises:
        BrokerError: no broker answers.

    """
    begun = Begun(time.time_ns() // 1_000_000, identity.sources, identity.count, dict(ends))
    note = orjson.dumps([begun.milliseconds, begun.sources, begun.source_count, len(ends)]).decode()
    async with consumer(settings, group_id=group) as client:
        await _commit(client, {TopicPartition(topic, p): OffsetAndMetadata(end, note) for p, end in ends.items()})
    return begun


async def _commit(client: AIOKafkaConsumer, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    client.assign(list(offsets))
    await client.commit(dict(offsets))
