"""How far a chain has been published, for people and tools; a worker that goes on from there reads `raw.tail`."""

from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.message import Message

from .kafka import offsets, read_range
from .messages import message_of

LAST_MESSAGES: Final = 8
"""More than writers have in flight: among as many, the last message of the chain is not hidden by a late writer's."""


async def last_messages(client: AIOKafkaConsumer, tokens: TopicPartition) -> list[Message]:
    """Return the last messages on a token partition, carries included, in the order of their offsets.

    ``client`` is used by nobody else meanwhile.

    Raises:
        DamagedError: one of them is none of TokenMill's.

    """
    first, end = (await offsets(client, [tokens]))[tokens]
    start = max(first, end - LAST_MESSAGES)
    return [message_of(record) async for record in read_range(client, tokens, start, end)]


def furthest(messages: Sequence[Message]) -> Message | None:
    """Return the message with the furthest cursor; None where there is none."""
    return max(messages, key=lambda message: message.cursor.place, default=None)


async def published_head(client: AIOKafkaConsumer, tokens: TopicPartition) -> Message | None:
    """Return the message with the furthest cursor among the last on a token partition; raises as `last_messages`."""
    return furthest(await last_messages(client, tokens))
