"""What runs beside a test until the test has seen enough: a producer of documents, a look at something, a reader."""

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.service import Chain, Raw, in_own_loop, send
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import partition_count
from tokenmill.app.settings import Settings
from tokenmill.documents import FLUSH_HEADER
from tokenmill.errors import BrokerError, DamagedError, StoreError
from tokenmill.store import PartitionReader, open_partition, partitions_in, streams_in

BURST_SECONDS: Final = 0.05
UNDECODABLE: Final = b"\xff\xfe no text"
TEXT: Final = b"a text of some length, so that a few of them fill a block; "


def document(rng: random.Random) -> bytes:
    """Return a record's value: mostly text, now and then nothing, JSON with an id, or bytes that are no text."""
    match rng.randrange(50):
        case 0:
            return UNDECODABLE
        case 1:
            return b""
        case 2:
            return b'{"id": "%d", "text": "an object"}' % rng.randrange(1000)
    return b"document %d " % rng.randrange(10**6) * rng.randint(1, 25)


@dataclass
class Feeder:
    """Sends documents to random partitions of the first raw topic, from entry to exit; then flushes every partition."""

    settings: Settings
    rng: random.Random
    burst: int = field(default=12, kw_only=True)
    """Documents, of 160 bytes on average if they are not made otherwise, every `BURST_SECONDS`."""
    most: int | None = field(default=None, kw_only=True)
    """After so many it sends none: a slow machine has no more to check than a fast one."""
    make: Callable[[random.Random], bytes] = field(default=document, kw_only=True)
    sent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.rng.random())
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    async def _feed(self) -> None:
        topic = self.settings.raw_topics[0]
        count = await partition_count(self.settings, topic)
        while not self._enough.is_set():
            with suppress(BrokerError):  # it was away for longer than a client waits: what was unsent is not missed
                async with producer(self.settings) as client:
                    while not self._enough.is_set():
                        burst = self.burst if self.most is None else min(self.burst, self.most - self.sent)
                        for _ in range(burst):
                            await client.send(topic, self.make(self.rng), partition=self.rng.randrange(count))
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
            flush_all(self.settings)


def flush_all(settings: Settings) -> None:
    count = in_own_loop(lambda: partition_count(settings, settings.raw_topics[0]))
    send(settings, [Raw(None, partition, headers=[FLUSH_HEADER]) for partition in range(count)])


@contextmanager
def beside(seconds: float, look: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Call ``look`` every so many seconds until the block ends; what it raises fails the block.

    Yields what raises that earlier, if there is anything by then.
    """
    enough = threading.Event()

    def run() -> None:
        while not enough.wait(seconds):
            look()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)

        def require_health() -> None:
            if running.done():
                running.result()

        try:
            yield require_health
        finally:
            enough.set()
        running.result()


@contextmanager
def following(store: Path, seconds: float = 0.2) -> Iterator[dict[Chain, list[str]]]:
    """Read all partitions of a store while it is filled, with readers that never close and check what they read.

    Yields the digest of every block's tokens and chain hash that was read, each once.
    """
    readers: dict[Chain, PartitionReader] = {}
    seen: dict[Chain, list[str]] = {}

    def look() -> None:
        try:
            for chain in [(stream, number) for stream in streams_in(store) for number in partitions_in(store, stream)]:
                reader = readers[chain] = readers.get(chain) or open_partition(store, *chain, check=True)
                known, blocks = seen.setdefault(chain, []), reader.refresh()
                assert blocks >= len(known)
                for number in range(len(known), blocks):
                    reader.documents(number)
                    known.append(digest(reader.read(number).tobytes(), reader.chain_before(number + 1)))
        except (DamagedError, StoreError, FileNotFoundError):
            if store.exists():  # else a test moved it away: there is another look
                raise

    with beside(seconds, look):
        yield seen
    look()


def digest(tokens: bytes, chain: bytes | None) -> str:
    return hashlib.sha256(tokens + (chain or b"")).hexdigest()
