"""Finding a block on a token partition by its number, without reading all of it."""

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.records import SourceRecord
from tokenmill.wire.message import Message

from .clients import read_range
from .message_reading import readable


async def record_at(client: AIOKafkaConsumer, tokens: TopicPartition, start: int, end: int) -> SourceRecord | None:
    """Return the first record at or after ``start``; None where there is none before ``end``."""
    return await anext(read_range(client, tokens, start, end), None)


async def message_at(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, span: tuple[int, int]
) -> Message | None:
    """Return the first message within ``span`` of the stream with this fingerprint; None where there is none.

    Records that are none of its messages are passed over: whoever accepts blocks meets them again.
    """
    async for record in read_range(client, tokens, *span):
        message = readable(record, fingerprint)
        if message is not None:
            return message
    return None


async def offset_before(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, block: int, span: tuple[int, int]
) -> int:
    """Return an offset of ``span`` from which on to read for a block: its message does not lie below it.

    That holds where numbers rise with offsets, as they nearly always do. Where writers wrote blocks again, the block
    may also lie below; who misses it reads from the start of ``span``.
    """
    low, high = span
    while high - low > 1:
        middle = (low + high) // 2
        message = await message_at(client, tokens, fingerprint, (middle, span[1]))
        if message is not None and message.first <= block:
            low = middle
        else:
            high = middle
    return low


async def message_with(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, block: int, span: tuple[int, int]
) -> SourceRecord | None:
    """Return the message of ``span`` with a block: searched by number; where these do not rise, by reading all."""
    first, end = span
    low = await offset_before(client, tokens, fingerprint, block, span)
    for start, stop in ((low, min(low + 1, end)), (first, end)):
        async for record in read_range(client, tokens, start, stop):
            message = readable(record, fingerprint)
            if message is not None and message.first <= block < message.end:
                return record
    return None
