"""Looking for the cluster's metadata while brokers are away, and after: two things that aiokafka leaves undone.

It asks again at once when it got no metadata: a producer with something to send does so thousands of times a second,
which takes a whole core for as long as the brokers are away (`aiokafka.producer.sender`, where it waits for leaders
that nobody knows).

And it asks again on the same connection when no answer came in time, though it closes one on which any other request
was not answered. If that connection is dead without a word (a router that forgot it, a host that vanished), a client
that needs metadata before it can do anything else waits for as long as TCP tries: a quarter of an hour.
"""

import asyncio
from typing import Any, Final

from aiokafka.conn import CloseReason

QUICK_LOOKS: Final = 5
"""Looks that may follow each other at once: a client that starts needs two or three."""
PAUSE_SECONDS: Final = 0.1
"""Then each waits for so long, as aiokafka's other requests do between two tries (retry_backoff_ms)."""


def calm(client: Any) -> None:
    """Make an `aiokafka.client.AIOKafkaClient` pause between looks for metadata that follow each other at once.

    And make it close the connections on which requests were not answered in time, so that the next look has others.
    """
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
        if not found:
            _close_silent(client)
        return found

    client._metadata_update = calmly  # noqa: SLF001


def _close_silent(client: Any) -> None:
    """Close the connections with requests that nobody waits for any more, because their time ran out."""
    for connection in list(client._conns.values()):  # noqa: SLF001 - aiokafka tells nobody
        if any(answer.cancelled() for _, _, answer in connection._requests):  # noqa: SLF001
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
