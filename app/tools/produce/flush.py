"""The flush record: in the raw log, it makes every chain of its partition fill its open block."""

import asyncio
from typing import Final

from tokenmill.errors import SettingsError, TopicError
from tokenmill.records import FLUSH_HEADER

from ...kafka.clients import producer
from ...kafka.settled_streams import settled_streams
from ...kafka.topics import partition_count
from ...settings import Settings


async def flush(settings: Settings, topic: str) -> int:
    """Append a flush record to every partition of a raw topic; return the number of partitions.

    On return they are acknowledged. The mill fills open blocks with padding when it reaches them.

    Raises:
        SettingsError: the settings, or the recipe of every stream of the topic, say that a flush is a tombstone.
        TopicError: there is no such topic.
        BrokerError: no broker answers.

    """
    require_flush_allowed(settings, topic)
    count = await partition_count(settings, topic)
    await _require_stream_that_allows(settings, topic)
    async with producer(settings) as client:
        sent = []
        for partition in range(count):
            batch = client.create_batch()  # `send` takes no record without key and value
            batch.append(timestamp=None, key=None, value=None, headers=[FLUSH_HEADER])
            batch.close()
            sent.append(await client.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*sent)
    return count


def require_flush_allowed(settings: Settings, topic: str) -> None:
    """Check by the settings that a flush of the raw topic has an effect.

    Raises:
        SettingsError: it would be a tombstone.

    """
    if not settings.for_topic(topic).allow_flush:
        raise SettingsError(f"allow_flush = false for {topic}: {_WITHOUT_FLUSH}")


async def _require_stream_that_allows(settings: Settings, topic: str) -> None:
    """Check the same by the recipes of the streams, which count, if this login may read them."""
    try:
        streams = await settled_streams(settings.model_copy(update={"raw_topics": (topic,)}))
    except TopicError:
        return  # there is none yet, or it is not for this login to see
    if not any(settled.genesis.recipe.allow_flush for settled in streams):
        raise SettingsError(f"the streams of {topic} were settled with allow_flush = false: {_WITHOUT_FLUSH}")


_WITHOUT_FLUSH: Final = (
    "a flush is a tombstone there, and nothing was written. The last tokens are published as soon as more text fills "
    "their blocks; to fill them with padding, give the topic a stream of its own that allows it (stream_suffix)"
)
