"""A producer of documents that runs beside a test, until the test has seen enough."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Self

from tests.service import Raw, in_own_loop, send
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import partition_count
from tokenmill.app.settings import Settings
from tokenmill.documents import FLUSH_HEADER
from tokenmill.errors import BrokerError

BURST_SECONDS: Final = 0.05
UNDECODABLE: Final = b"\xff\xfe no text"


def document(rng: random.Random) -> bytes:
    """Return a record's value: mostly text, now and then nothing, JSON with an id, or bytes that are no text."""
    match rng.randrange(50):
        case 0:
            return UNDECODABLE
        case 1:
            return b""
        case 2:
            return b'{"id": "%d", "text": "an object"}' % rng.randrange(1000)
        case _:
            return b"document %d " % rng.randrange(10**6) * rng.randint(1, 25)


class Feeder:
    """Sends documents to random partitions of the first raw topic, from entry to exit; then flushes every partition."""

    def __init__(
        self,
        settings: Settings,
        rng: random.Random,
        *,
        burst: int = 12,
        most: int | None = None,
        make: Callable[[random.Random], bytes] = document,
    ) -> None:
        """Send ``burst`` documents, of 160 bytes on average if they are not made otherwise, every `BURST_SECONDS`.

        After ``most`` documents it sends none: a slow machine has no more to check than a fast one.
        """
        self.sent = 0
        self._settings = settings
        self._rng = random.Random(rng.random())
        self._burst = burst
        self._most = most
        self._make = make
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._feeding: Future[None] = Future()

    async def _feed(self) -> None:
        count = await partition_count(self._settings, self._settings.raw_topics[0])
        while not self._enough.is_set():
            with suppress(BrokerError):  # it was away for longer than a client waits: what was unsent is not missed
                await self._feed_one_client(count)

    async def _feed_one_client(self, count: int) -> None:
        topic = self._settings.raw_topics[0]
        async with producer(self._settings) as client:
            while not self._enough.is_set():
                burst = self._burst if self._most is None else min(self._burst, self._most - self.sent)
                for _ in range(burst):
                    await client.send(topic, self._make(self._rng), partition=self._rng.randrange(count))
                self.sent += burst
                await asyncio.sleep(BURST_SECONDS)
            await client.flush()

    def __enter__(self) -> Self:
        self._feeding = self._pool.submit(lambda: asyncio.run(self._feed()))
        while not self.sent and not self._feeding.done():
            time.sleep(BURST_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._enough.set()
        self._pool.shutdown()
        if kind is None:
            self._feeding.result()
            flush_all(self._settings)


def flush_all(settings: Settings) -> None:
    """Put a flush record behind all records of every partition of the first raw topic."""
    count = in_own_loop(lambda: partition_count(settings, settings.raw_topics[0]))
    send(settings, [Raw(None, partition, headers=[FLUSH_HEADER]) for partition in range(count)])
