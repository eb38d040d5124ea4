"""Clients whose brokers are away do not spin."""

import asyncio

from aiokafka import AIOKafkaProducer

from tokenmill.app.kafka.metadata_backoff import PAUSE_SECONDS, QUICK_LOOKS, calm

SECONDS = 1.0


async def looks(*, calmly: bool) -> int:
    """Return how often a client that asks again at once looks for metadata within `SECONDS`, where nobody answers."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    client = producer.client
    found = 0

    async def look(*_: object) -> bool:
        nonlocal found
        found += 1
        await asyncio.sleep(0)
        return False

    client._metadata_update = look
    if calmly:
        calm(client)
    synchronizer = asyncio.create_task(client._md_synchronizer())
    end = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end:
        await asyncio.wait([client.force_metadata_update()], timeout=SECONDS)
    synchronizer.cancel()
    await producer.stop()
    return found


async def test_metadata_is_not_asked_for_again_at_once_for_ever() -> None:
    """Alone, aiokafka asks as fast as it can; calm, it asks a few times at once, and then after a pause each time."""
    assert await looks(calmly=False) > 1000
    assert QUICK_LOOKS <= await looks(calmly=True) <= QUICK_LOOKS + SECONDS / PAUSE_SECONDS + 1
