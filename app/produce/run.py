"""A run of produce: documents from sources into a raw topic, acknowledged, in order, at a rate, and once."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from tokenmill.errors import BrokerError, InputError

from ..clients.kafka import producer
from ..clients.topics import partition_count
from ..settings import Settings
from .begun import group_name
from .fence import fenced_producer
from .identity import Identity
from .items import Item, Refused
from .marks import Floor, Mark, encode
from .order import Order, State
from .refusals import OnError, Refusals, require_dead_letters
from .resuming import Taken, taken_up
from .sender import MARK_BYTES, Sender, Sent, batch_bytes
from .shuffle import Shuffle
from .sources import Source
from .summary import Progress, Summary
from .tails import Standing

PROGRESS_SECONDS: Final = 0.2
SHORTEST_PAUSE_SECONDS: Final = 0.02
"""A pause for the rate is at least this long, so that a batch holds more than one document."""
MOST_FLOORS: Final = 64
"""Chunks after which open batches are sent: with keys, one that hardly grows would keep the floor where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a run goes about it."""

    rate: float | None = None
    """Bytes of values a second; None: as fast as it goes."""
    limit: int | None = None
    """Documents of the whole run, those that an earlier call sent included; None: all."""
    on_error: OnError = "skip"
    shuffle: int = 0
    """Documents in the shuffle buffer."""
    seed: int = 0
    compression: str | None = None
    """Codec of the batches: gzip, snappy, lz4 or zstd."""
    identity: Identity | None = None
    """The run, if it may be interrupted and go on; None: it carries no marks, and another call sends all again."""
    restart: bool = False
    """Begin anew, whatever was sent before."""


async def produce(
    settings: Settings,
    topic: str,
    sources: Sequence[Source],
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Send the documents to the raw topic; on return each is acknowledged by all in-sync replicas, once.

    Without a key, the n-th document goes to partition n modulo their number: the same input is spread the same way,
    and evenly. With one, equal keys share a partition, the one that Kafka's own clients choose. ``progress`` is called
    a few times a second and at the end. Memory is bounded whatever the source. Interrupted, a run has sent some first
    part of each partition's documents; one with an identity sends the others when it is called again, and no document
    twice.

    Raises:
        TopicError: there is no such topic, or it refuses records.
        BrokerError: no broker answers; says how many documents were acknowledged.
        InputError: ``plan.on_error`` is ``fail``, and a document cannot be used; all before it are acknowledged. Or the
            sources have changed since the run began; or another call has taken the run over.
        SourceError: the topic no longer tells where the run stands.

    """
    plan = plan or Plan()
    count = await partition_count(settings, topic)
    if plan.on_error == "dead-letter":
        await require_dead_letters(settings, topic)
    summary = Summary(topic, {partition: Sent() for partition in range(count)})
    summary.bytes_total = sum(source.size for source in sources)
    try:
        async with _client(settings, topic, count, plan) as client, _taken(settings, topic, count, plan) as taken:
            run = _Run(client, plan, summary, progress, taken=taken, sources=len(sources))
            with Order(sources, run.standing.floor.state) as order:
                await run.all(order)
    except BrokerError as error:
        raise BrokerError(f"{error}. {summary.documents} documents were acknowledged before") from error
    return summary


@asynccontextmanager
async def _client(settings: Settings, topic: str, count: int, plan: Plan) -> AsyncIterator[AIOKafkaProducer]:
    options: dict[str, Any] = {"max_batch_size": batch_bytes(count) + MARK_BYTES, "compression_type": plan.compression}
    if plan.identity is None:
        async with producer(settings, **options) as client:
            yield client
    else:
        name = group_name(settings, plan.identity)
        async with fenced_producer(settings, name, topic, count, **options) as client:
            yield client


def _taken(settings: Settings, topic: str, count: int, plan: Plan) -> AbstractAsyncContextManager[Taken | None]:
    if plan.identity is None:
        return nullcontext()
    return taken_up(settings, topic, count, plan.identity, restart=plan.restart)


class _Run:
    def __init__(
        self,
        client: AIOKafkaProducer,
        plan: Plan,
        summary: Summary,
        progress: Progress | None,
        *,
        taken: Taken | None,
        sources: int,
    ) -> None:
        partitions = len(summary.partitions)
        self.standing = taken.standing if taken is not None else Standing.nothing(sources, partitions)
        self._begun = taken.begun.milliseconds if taken is not None else 0
        self._partitions = len(self.standing.sent)
        self._floors = [self.standing.floor]  # each is kept until all documents before a later one are acknowledged
        self._number = summary.before = self.standing.floor.number
        summary.refused = self.standing.floor.refused
        summary.broken = summary.broken_before = self.standing.floor.broken
        self._plan = plan
        self._summary = summary
        self._progress = progress
        mark = None if plan.identity is None else self._mark
        self._sender = Sender(client, summary.topic, batch_bytes(partitions), summary.partitions, mark)
        self._refusals = Refusals(client, summary.topic, answer, summary)
        self._shuffle = Shuffle(plan.shuffle, plan.seed) if plan.shuffle else None
        self._bytes_put = 0
        self._started = time.monotonic()
        self._reported = 0.0

    async def all(self, order: Order) -> None:
        """Send until the sources or the limit end, then wait for the acknowledgements."""
        try:
            async for turn in order.turns():
                if turn is None:  # what is at hand is sent, for the next may be long in coming
                    await self._sender.send_open()
                else:
                    await self._items(turn.items)
                    self._summary.bytes_read = turn.bytes_read
                    await self._checkpoint(turn.after)
                self._report()
                if self._full():
                    break
            if self._shuffle is not None:
                await self._items(list(self._shuffle.rest()), shuffled=True)
        except InputError:  # what came before the document that ends the run is still to be acknowledged
            await self._settle()
            raise
        await self._settle()
        self._report(last=True)

    def _full(self) -> bool:
        return self._plan.limit is not None and self._number >= self._plan.limit

    async def _settle(self) -> None:
        await self._sender.settle()
        await self._refusals.settle()

    async def _checkpoint(self, state: State) -> None:
        """Remember where the order is; not with a shuffle buffer, whose content only the beginning tells.

        What was refused before it is acknowledged then: the next call does not read it again.
        """
        if self._shuffle is not None or self._plan.identity is None:
            return
        await self._refusals.settle()
        self._floors.append(Floor(self._number, state, self._summary.refused, self._summary.broken))
        if len(self._floors) > MOST_FLOORS:
            await self._sender.send_open()

    async def _items(self, items: Sequence[Item | Refused], *, shuffled: bool = False) -> None:
        sender, sent, count = self._sender, self.standing.sent, self._partitions
        put, paced, limit = sender.put, self._plan.rate is not None, self._plan.limit
        for found in items:
            if isinstance(found, Refused):
                await self._refusals.take(found)
                continue
            item: Item | None = found if self._shuffle is None or shuffled else self._shuffle.exchange(found)
            if item is None:
                continue
            number = self._number
            if limit is not None and number >= limit:
                return
            value, _, key = item
            partition = number % count if key is None else (murmur2(key) & 0x7FFFFFFF) % count
            self._number = number + 1
            if number <= sent[partition]:
                self._summary.before += 1
                continue
            if paced:
                await self._pace()
            if not put(partition, key, value, number):
                await sender.send(partition)
                put(partition, key, value, number)
            self._bytes_put += len(value)

    def _mark(self, number: int, unsettled: int) -> bytes:
        del self._floors[: bisect_right(self._floors, unsettled, key=attrgetter("number")) - 1]
        run = self._plan.identity.run if self._plan.identity is not None else ""
        return encode(Mark(run, self._begun, number, self._floors[0]))

    async def _pace(self) -> None:
        early = self._bytes_put / (self._plan.rate or 1.0) - (time.monotonic() - self._started)
        if early > SHORTEST_PAUSE_SECONDS:
            await self._sender.send_open()
            self._report()
            await asyncio.sleep(early)

    def _report(self, *, last: bool = False) -> None:
        now = time.monotonic()
        self._summary.seconds = now - self._started
        if self._progress is not None and (last or now - self._reported >= PROGRESS_SECONDS):
            self._reported = now
            self._progress(self._summary)
