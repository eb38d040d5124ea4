"""How far a chain has been published, for people and tools; a worker that goes on from there reads `raw.tail`."""

from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.reading.continuing import FIRST_TAIL
from tokenmill.wire.ignoring import IgnoreList
from tokenmill.wire.message import Message

from .clients import offsets, read_range
from .message_reading import message_of


async def last_messages(
    client: AIOKafkaConsumer, tokens: TopicPartition, ignored: IgnoreList | None = None
) -> list[Message]:
    """Return the last messages on a token partition, at most `FIRST_TAIL`, carries included, in their offsets' order.

    Those that are ``ignored`` are left out.     ``client`` is used by nobody else meanwhile.

    Raises:
        DamagedError: one of them is none of TokenMill's.

    """
    first, end = (await offsets(client, [tokens]))[tokens]
    start = max(first, end - FIRST_TAIL)
    return [
        message_of(record, tokens)
        async for record in read_range(client, tokens, start, end)
        if ignored is None or not ignored.names(tokens.partition, record)
    ]


def furthest(messages: Sequence[Message]) -> Message | None:
    """Return the message with the furthest cursor; None where there is none."""
    return max(messages, key=lambda message: message.cursor.place, default=None)


async def published_head(
    client: AIOKafkaConsumer, tokens: TopicPartition, ignored: IgnoreList | None = None
) -> Message | None:
    """Return the message with the furthest cursor among the last on a token partition; raises as `last_messages`."""
    return furthest(await last_messages(client, tokens, ignored))
