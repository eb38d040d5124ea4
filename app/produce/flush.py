"""The flush record: it stands in the raw log and makes every chain of its partition fill its open block."""

import asyncio

from tokenmill.records import FLUSH_HEADER

from ..clients.kafka import producer
from ..clients.topics import partition_count
from ..settings import Settings


async def flush(settings: Settings, topic: str) -> int:
    """Put a flush record behind all records of every partition of a raw topic; return the number of partitions.

    On return they are acknowledged. The mill fills open blocks with padding when it reaches them.

    Raises:
        TopicError: there is no such topic.
        BrokerError: no broker answers.

    """
    count = await partition_count(settings, topic)
    async with producer(settings) as client:
        sent = []
        for partition in range(count):
            batch = client.create_batch()  # `send` takes no record without key and value
            batch.append(timestamp=None, key=None, value=None, headers=[FLUSH_HEADER])
            batch.close()
            sent.append(await client.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*sent)
    return count
