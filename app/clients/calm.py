"""Calm while brokers are away: aiokafka asks for the cluster's metadata again at once when it got none.

A producer with something to send does so thousands of times a second, which takes a whole core for as long as the
brokers are away (`aiokafka.producer.sender`, where it waits for leaders that nobody knows).
"""

import asyncio
from typing import Any, Final

QUICK_LOOKS: Final = 5
"""Looks that may follow each other at once: a client that starts needs two or three."""
PAUSE_SECONDS: Final = 0.1
"""Then each waits for so long, as aiokafka's other requests do between two tries (retry_backoff_ms)."""


def calm(client: Any) -> None:
    """Make an `aiokafka.client.AIOKafkaClient` pause between looks for metadata that follow each other at once."""
    look = client._metadata_update  # noqa: SLF001 - aiokafka has no setting for it
    loop = asyncio.get_running_loop()
    ended, quick = -PAUSE_SECONDS, 0

    async def calmly(*arguments: Any) -> bool:
        nonlocal ended, quick
        quick = quick + 1 if loop.time() - ended < PAUSE_SECONDS else 0
        if quick >= QUICK_LOOKS:
            await asyncio.sleep(PAUSE_SECONDS)
            quick = QUICK_LOOKS - 1
        found: bool = await look(*arguments)
        ended = loop.time()
        return found

    client._metadata_update = calmly  # noqa: SLF001
