"""A run of produce: documents from sources into a raw topic, acknowledged, in order, at a rate, and once."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import xxhash
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from tokenmill.errors import BrokerError, InputError

from ...kafka.clients import producer
from ...kafka.topics import ensure_produced, partition_count
from ...settings import Settings, produced_topic
from .items import Item, Refused, Source
from .reading_order import Order, Shuffle, State
from .resuming import Resuming
from .run_notes import Before, Identity, run_name
from .run_position import Floor, Mark, Standing, encode_mark
from .sender import MARK_BYTES, Sender, Sent, batch_bytes, fenced_producer
from .summary import Answer, OnError, Progress, Refusals, Summary, require_dead_letters

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
    only_new: bool = False
    """Of a run that is done, send what its sources got since: new files, and lines of files that only grew."""


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
            sources have changed since the run began, and how; or another call has taken the run over.
        SourceError: the topic no longer tells where the run stands.

    """
    plan = plan or Plan()
    count = await partition_count(settings, topic)
    dead_letters = await require_dead_letters(settings, topic) if plan.on_error == "dead-letter" else 1
    summary = Summary(topic, {partition: Sent() for partition in range(count)})
    summary.limit = plan.limit
    try:
        async with _client(settings, topic, count, plan) as client:
            run = _Run(client, plan, summary, progress, dead_letters)
            if plan.identity is None:
                await run.all(sources, Standing.nothing(len(sources), count))
            else:
                resuming = Resuming(settings, client, topic, plan.identity.run, sources, plan.only_new)
                await _in_parts(resuming, run, plan, summary, count)
    except BrokerError as error:
        raise BrokerError(f"{error}. {summary.documents} documents were acknowledged before") from error
    return summary


async def _in_parts(resuming: Resuming, run: "_Run", plan: Plan, summary: Summary, partitions: int) -> None:
    """Send what is left of the run, and then what is new, if that is wanted."""
    restart, more = plan.restart, True
    while more:
        taken = await resuming.take_up(partitions, restart=restart)
        summary.left_out = taken.left_out
        whole = await run.all(taken.sources, taken.standing, taken.begun.milliseconds)
        if whole and taken.begun.settled is None:
            await resuming.settle(taken.begun, run.last_numbers, run.after)
        restart, more = False, whole and taken.more


@asynccontextmanager
async def _client(settings: Settings, topic: str, count: int, plan: Plan) -> AsyncIterator[AIOKafkaProducer]:
    options: dict[str, Any] = {"max_batch_size": batch_bytes(count) + MARK_BYTES, "compression_type": plan.compression}
    if plan.identity is None:
        async with producer(settings, **options) as client:
            yield client
    else:
        await ensure_produced(settings, topic)
        topics = {topic: count, produced_topic(topic): 1}
        async with fenced_producer(settings, run_name(settings, plan.identity.run), topics, **options) as client:
            yield client


class _Run:
    """Sends the parts of a run, one after the other."""

    def __init__(
        self,
        client: AIOKafkaProducer,
        plan: Plan,
        summary: Summary,
        progress: Progress | None,
        dead_letters: int,
    ) -> None:
        self._client = client
        self._plan = plan
        self._summary = summary
        self._progress = progress
        self._dead_letters = dead_letters
        self._number = 0
        self._parts = 0
        self._bytes_put = 0
        self._started = time.monotonic()
        self._reported = 0.0

    async def all(self, sources: Sequence[Source], standing: Standing, begun: int | None = None) -> bool:
        """Send what a part lacks, until its sources or the limit end; on return all of that is acknowledged.

        ``begun`` is when the part began, for its marks; without marks None. Returns whether the sources ended.
        """
        self._take(sources, standing, begun)
        ticking = asyncio.create_task(self._tick())
        try:
            with Order(sources, standing.floor.state) as order:
                await self._turns(order)
        except InputError:  # what came before the document that ends the run is still to be acknowledged
            await self._settle()
            raise
        else:
            await self._settle()
        finally:
            ticking.cancel()
        self._report(last=True)
        return not self._full()

    def _take(self, sources: Sequence[Source], standing: Standing, begun: int | None) -> None:
        summary, floor, plan = self._summary, standing.floor, self._plan
        self._parts += 1
        if self._parts == 1:  # of later ones, the first has counted all that came before
            summary.before = floor.number
            summary.refused = floor.refused
            summary.broken = summary.broken_before = floor.broken
        summary.bytes_total = sum(source.size for source in sources)
        self._number = floor.number
        self.last_numbers = dict(standing.sent)
        self._sent = standing.sent
        self._partitions = len(standing.sent)
        self._floors = [floor]  # each is kept until all documents before a later one are acknowledged
        self._begun = begun or 0
        mark = None if begun is None else self._mark
        size = batch_bytes(len(summary.partitions))
        self._sender = Sender(self._client, summary.topic, size, summary.partitions, mark)
        answer = Answer(plan.on_error, self._call(begun), self._dead_letters, goes_on=begun is not None)
        self._refusals = Refusals(self._client, summary.topic, answer, summary)
        self._shuffle = Shuffle(plan.shuffle, plan.seed) if plan.shuffle else None

    def _call(self, begun: int | None) -> str:
        """Return what tells the dead letters of this run, begun then, from all others."""
        run = self._plan.identity.run if self._plan.identity is not None else ""
        return xxhash.xxh32_hexdigest(f"{run} {time.time_ns() if begun is None else begun}".encode())

    @property
    def after(self) -> Before:
        """What came before the next part, once all of this one is acknowledged."""
        return Before(self._number, self._summary.refused, self._summary.broken)

    async def _turns(self, order: Order) -> None:
        async for turn in order.turns():
            if turn is None:  # what is at hand is sent, for the next may be long in coming
                await self._sender.send_open()
            else:
                await self._items(turn.items)
                self._summary.bytes_read = turn.bytes_read
                self._summary.count_unmet(turn.unmet)
                await self._checkpoint(turn.after)
            self._report()
            if self._full():
                break
        if self._shuffle is not None:
            await self._items(list(self._shuffle.rest()), shuffled=True)

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
        sender, sent, last, count = self._sender, self._sent, self.last_numbers, self._partitions
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
            last[partition] = number
            self._bytes_put += len(value)

    def _mark(self, number: int, unsettled: int) -> bytes:
        del self._floors[: bisect_right(self._floors, unsettled, key=attrgetter("number")) - 1]
        run = self._plan.identity.run if self._plan.identity is not None else ""
        return encode_mark(Mark(run, self._begun, number, self._floors[0]))

    async def _pace(self) -> None:
        early = self._bytes_put / (self._plan.rate or 1.0) - (time.monotonic() - self._started)
        if early > SHORTEST_PAUSE_SECONDS:
            await self._sender.send_open()
            self._report()
            await asyncio.sleep(early)

    async def _tick(self) -> None:
        """Report also while nothing moves."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._report()

    def _report(self, *, last: bool = False) -> None:
        now = time.monotonic()
        self._summary.seconds = now - self._started
        if self._progress is not None and (last or now - self._reported >= PROGRESS_SECONDS):
            self._reported = now
            self._progress(self._summary)
