"""The flush record: it stands in the raw log and makes every chain of its partition fill its open block."""

from tokenmill.records import FLUSH_HEADER

from ..kafka import producer
from ..settings import Settings
from ..topics import partition_count
from .sender import Sender, Sent


async def flush(settings: Settings, topic: str) -> int:
    """Put a flush record behind all records of every partition of a raw topic; return the number of partitions.

    On return they are acknowledged. The mill fills open blocks with padding when it reaches them.

    Raises:
        TopicError: there is no such topic, or it refuses records.
        BrokerError: no broker answers.

    """
    count = await partition_count(settings, topic)
    async with producer(settings) as client:
        sender = Sender(client, topic, {partition: Sent() for partition in range(count)})
        for partition in range(count):
            await sender.add(partition, None, None, [FLUSH_HEADER])
        await sender.settle()
    return count
