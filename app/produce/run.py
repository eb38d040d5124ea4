"""A run of produce: documents from sources into a raw topic, acknowledged, in order, at a rate."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from aiokafka.partitioner import murmur2

from tokenmill.errors import BrokerError, InputError

from ..kafka import producer
from ..settings import Settings
from ..topics import partition_count
from .feed import Feed
from .items import Item, Refused
from .sender import Sender, Sent, batch_bytes

EXAMPLES: Final = 20
"""How many refusals are remembered word for word; all are counted."""
PROGRESS_SECONDS: Final = 0.2
SHORTEST_PAUSE_SECONDS: Final = 0.02
"""A pause for the rate is at least this long, so that a batch holds more than one document."""


@dataclass(slots=True)
class Summary:
    """What a run did, so far or in all."""

    topic: str
    partitions: dict[int, Sent]
    """What is acknowledged, by partition."""
    refused: int = 0
    examples: list[Refused] = field(default_factory=list)
    """The first refusals."""
    seconds: float = 0.0

    @property
    def documents(self) -> int:
        """Acknowledged documents."""
        return sum(sent.documents for sent in self.partitions.values())

    @property
    def bytes(self) -> int:
        """Bytes of the acknowledged records' values."""
        return sum(sent.bytes for sent in self.partitions.values())


Progress = Callable[[Summary], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a run goes about it."""

    rate: float | None = None
    """Bytes of values a second; None: as fast as it goes."""
    limit: int | None = None
    """Documents to send; None: all."""
    key: str | None = None
    """Field (or the id field) whose value becomes the record's key and so decides its partition."""
    id_field: str = "id"
    """What the topic calls a document's id, for a key that is the id."""
    fail: bool = False
    """End at the first document that cannot be used, rather than pass over it."""


async def produce(
    settings: Settings,
    topic: str,
    items: Iterable[Item | Refused],
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Send the documents to the raw topic; on return each is acknowledged by all in-sync replicas, once.

    Without a key, the n-th document goes to partition n modulo their number: the same input is spread the same way,
    and evenly. With one, equal keys share a partition, the one that Kafka's own clients choose. ``progress`` is called
    a few times a second and at the end. Memory is bounded whatever the source. Interrupted, a run has sent some first
    part of each partition's documents.

    Raises:
        TopicError: there is no such topic, or it refuses records.
        BrokerError: no broker answers; says how many documents were acknowledged.
        InputError: ``plan.fail``, and a document cannot be used; all before it are acknowledged.

    """
    count = await partition_count(settings, topic)
    summary = Summary(topic, {partition: Sent() for partition in range(count)})
    try:
        async with producer(settings, max_batch_size=batch_bytes(count)) as client:
            run = _Run(Sender(client, topic, summary.partitions), plan or Plan(), summary, progress, count)
            with Feed(iter(items)) as feed:
                await run.all(feed)
    except BrokerError as error:
        raise BrokerError(f"{error}. {summary.documents} documents were acknowledged before") from error
    return summary


@dataclass(slots=True)
class _Run:
    sender: Sender
    plan: Plan
    summary: Summary
    progress: Progress | None
    count: int
    added: int = 0
    bytes_added: int = 0
    started: float = field(default_factory=time.monotonic)
    reported: float = 0.0

    async def all(self, feed: Feed) -> None:
        """Send until the source or the limit ends, then wait for the acknowledgements."""
        try:
            while not self._full() and (items := feed.take_now() or await self._wait(feed)):
                for item in items:
                    if self._full():
                        break
                    await self._one(item)
                self._report()
        except InputError:  # what came before the document that ends the run is still to be acknowledged
            await self.sender.settle()
            raise
        await self.sender.settle()
        self._report(last=True)

    def _full(self) -> bool:
        return self.plan.limit is not None and self.added >= self.plan.limit

    async def _wait(self, feed: Feed) -> list[Item | Refused]:
        """Wait for the source; what is at hand is sent first, for it may be long in coming."""
        await self.sender.send_open()
        self._report()
        return await feed.take()

    async def _one(self, item: Item | Refused) -> None:
        key = self._key(item) if isinstance(item, Item) else None
        if isinstance(item, Item) and self.plan.key is not None and key is None:
            item = Refused(item.where, f"no field {self.plan.key!r} for the key")
        if isinstance(item, Refused):
            self._refuse(item)
            return
        await self._pace()
        partition = self.added % self.count if key is None else (murmur2(key) & 0x7FFFFFFF) % self.count
        await self.sender.add(partition, key, item.value)
        self.added += 1
        self.bytes_added += len(item.value)

    def _key(self, item: Item) -> bytes | None:
        """Return the record's key: the field's value as text, or None where there is none to be had."""
        if self.plan.key is None:
            return None
        document = item.document
        value = document.id if self.plan.key == self.plan.id_field else document.fields.get(self.plan.key)
        return None if value is None else str(value).encode()

    def _refuse(self, refused: Refused) -> None:
        if self.plan.fail:
            raise InputError(
                f"{refused.where}: {refused.why}. Correct it, or pass over such documents: --on-error skip"
            )
        self.summary.refused += 1
        if len(self.summary.examples) < EXAMPLES:
            self.summary.examples.append(refused)

    async def _pace(self) -> None:
        if self.plan.rate is None:
            return
        early = self.bytes_added / self.plan.rate - (time.monotonic() - self.started)
        if early > SHORTEST_PAUSE_SECONDS:
            await self.sender.send_open()
            self._report()
            await asyncio.sleep(early)

    def _report(self, *, last: bool = False) -> None:
        now = time.monotonic()
        self.summary.seconds = now - self.started
        if self.progress is not None and (last or now - self.reported >= PROGRESS_SECONDS):
            self.reported = now
            self.progress(self.summary)
