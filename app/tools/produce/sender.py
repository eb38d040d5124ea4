"""Records on their way to a topic: one producer at a time for a run, batches, what was acknowledged, and refused."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)

from tokenmill.errors import BrokerError, InputError

from ...kafka.clients import AGAIN, REFUSALS, producer, sending_to
from ...kafka.topics import Existing
from ...settings import Settings
from ...sources.items import Where
from .run_notes import MARK_HEADER

BATCH_BYTES: Final = 256 * 1024
"""Bytes of a partition's batch: where a broker's speed stops growing, and below a topic's default limit of 1 MiB."""
OPEN_BYTES: Final = 64 << 20
"""Bytes of all partitions' open batches together: a thousand partitions get smaller batches."""
RECORD_BYTES: Final = 32
"""Bytes of a record beside key, value and headers, at most (KIP-98: lengths, deltas, attributes)."""
MARK_BYTES: Final = 1024
FRAME_BYTES: Final = 61 + MARK_BYTES
"""Bytes of a batch beside its records: its head (KIP-98), and the mark."""
SILENCE_SECONDS: Final = 60.0
"""How long no acknowledgement may arrive, a broker's restart included, before the run gives up."""
OPEN_MILLISECONDS: Final = 10_000
"""After which brokers end the transaction of a process that was killed in it: so long, readers wait."""


@dataclass(slots=True)
class Acknowledged:
    """What was acknowledged in one partition: documents, and bytes of their values."""

    documents: int = 0
    bytes: int = 0


def batch_bytes(partitions: int, topic: Existing | None = None) -> int:
    """Return the size of a batch in bytes, which the topic takes, where it is known; one record may be larger."""
    most = BATCH_BYTES if topic is None else max(topic.max_message_bytes - FRAME_BYTES, 1)
    return min(BATCH_BYTES, OPEN_BYTES // partitions, most)


class SentDocument(NamedTuple):
    """A document on its way."""

    key: bytes | None
    value: bytes
    number: int
    where: Where


@dataclass(slots=True)
class _Batch:
    records: list[SentDocument]
    size: int = 0


_HandedOver: TypeAlias = tuple["asyncio.Future[Any]", int]
Refuse = Callable[[SentDocument, KafkaError, int], Awaitable[None]]
"""Takes a record that the brokers refuse, their error, and its bytes as it was sent; raises if the run is to end."""


@dataclass(slots=True)
class Sender:
    """Sends numbered documents in batches, in order in each partition, and counts what is acknowledged.

    One batch is under way to a partition. One that is refused as a whole is sent again in halves, and these in theirs,
    until what is refused is one record. The brokers have taken nothing of it, so the producer's sequence goes back to
    where it was: should they have taken it unnoticed, they refuse its parts, and no record is there twice. The client's
    ``max_batch_size`` is at least ``batch_bytes`` and `MARK_BYTES` more.
    """

    client: AIOKafkaProducer
    topic: str
    batch_bytes: int
    sent: dict[int, Acknowledged]
    """By partition; grows as acknowledgements arrive."""
    mark: Callable[[int, int], bytes] | None = None
    """Gives a batch's mark, by the number of its last document and the lowest unacknowledged one; None: no marks."""
    refuse: Refuse | None = None
    """None: what is refused ends the run."""
    last: dict[int, int] = field(default_factory=dict)
    """By partition: number of the last document that was acknowledged."""
    _open: dict[int, _Batch] = field(default_factory=dict)
    _under_way: dict[int, tuple[int, "asyncio.Task[None]"]] = field(default_factory=dict)
    """By partition: number of the first document of what is under way there, and what waits for the answer."""
    _errors: dict[int, BaseException] = field(default_factory=dict)
    """By partition, in which nothing is sent any more; the first error is first."""
    _heard: float = 0.0

    def put(self, partition: int, record: SentDocument) -> bool:
        """Add a document to its partition's batch; return False if the batch is full: `send` it, and try again."""
        batch = self._open.get(partition)
        size = len(record.value) + RECORD_BYTES + (len(record.key) if record.key else 0)
        if batch is None:
            self._open[partition] = _Batch([record], size)
        elif batch.size + size > self.batch_bytes:
            return False
        else:
            batch.records.append(record)
            batch.size += size
        return True

    async def send(self, partition: int) -> None:
        """Hand the partition's open batch to the client, if there is one, once the one before has its answer.

        Raises TopicError where the brokers refused an earlier batch, KafkaTimeoutError where they do not answer, and
        ProducerFenced where another producer of the same run has taken over.
        """
        self._raise_error()
        await self._send(partition)
        self._raise_error()

    async def _send(self, partition: int) -> None:
        while partition in self._under_way:
            await self._wait()
        if partition in self._open and partition not in self._errors:
            records = self._open[partition].records
            sent = await self._hand_over(partition, records)
            del self._open[partition]
            delivery = asyncio.create_task(self._delivered(partition, records, sent))
            self._under_way[partition] = records[0].number, delivery
            delivery.add_done_callback(partial(self._ended, partition))

    async def send_open(self) -> None:
        """Hand all open batches to the client; on return they are not acknowledged yet. Raises as `send` does."""
        for partition in list(self._open):
            await self.send(partition)

    async def settle(self) -> None:
        """Send all open batches and wait; on return every document that was put is acknowledged, or refused.

        Where a partition refused what ends the run, the others have got what was put. Raises as `send` does.
        """
        for partition in list(self._open):
            await self._send(partition)
        while self._under_way:
            await self._wait()
        self._raise_error()

    async def _wait(self) -> None:
        """Wait for an answer to what is under way; KafkaTimeoutError where none comes for `SILENCE_SECONDS`."""
        began, deliveries = time.monotonic(), [delivery for _, delivery in self._under_way.values()]
        while not (await asyncio.wait(deliveries, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
            if time.monotonic() - max(self._heard, began) >= SILENCE_SECONDS:
                raise KafkaTimeoutError

    async def _hand_over(self, partition: int, records: Sequence[SentDocument]) -> _HandedOver:
        """Give a batch to the client, to which no other is under way; return its answer, and its bytes."""
        builder = self.client.create_batch()
        append, now = builder.append, time.time_ns() // 1_000_000
        *before, last = records
        fits = True
        for record in before:
            fits = append(timestamp=now, key=record.key, value=record.value) is not None and fits
        firsts = [batch.records[0].number for batch in self._open.values()]
        unsettled = min([*firsts, *(first for first, _ in self._under_way.values())], default=1 << 63)
        headers = [] if self.mark is None else [(MARK_HEADER, self.mark(last.number, unsettled))]
        if append(timestamp=now, key=last.key, value=last.value, headers=headers) is None or not fits:
            raise ValueError(f"a batch of {len(records)} records does not fit max_batch_size")
        builder.close()
        size = builder.size()
        return await self.client.send_batch(builder, self.topic, partition=partition), size

    def _ended(self, partition: int, delivery: "asyncio.Task[None]") -> None:
        del self._under_way[partition]
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            self._errors[partition] = error

    async def _delivered(
        self, partition: int, records: Sequence[SentDocument], sent: _HandedOver, *, again: bool = False
    ) -> None:
        """Wait for the answer; send what is refused as a whole again: as it is, if that may help, or in halves."""
        answer, size = sent
        try:
            await answer
        except REFUSALS as error:
            if self.refuse is None:
                raise
            manager = self.client._txn_manager  # noqa: SLF001 - see `Sender`
            manager.increment_sequence_number(TopicPartition(self.topic, partition), -len(records))
            half = len(records) // 2
            if isinstance(error, AGAIN) and not again:
                parts, again = [records], True
            elif half and not isinstance(error, InvalidTimestampError):  # the time is no record's own
                parts = [records[:half], records[half:]]
            else:
                parts = []
                await self.refuse(records[0], error, size)
            for part in parts:
                await self._delivered(partition, part, await self._hand_over(partition, part), again=again)
        else:
            total = self.sent[partition]
            total.documents += len(records)
            total.bytes += sum(len(record.value) for record in records)
            self.last[partition] = records[-1].number
        finally:
            self._heard = time.monotonic()

    def _raise_error(self) -> None:
        for error in self._errors.values():
            with sending_to(self.topic):
                raise error


@asynccontextmanager
async def fenced_producer(
    settings: Settings, name: str, partitions: Mapping[str, int], **options: Any
) -> AsyncIterator[AIOKafkaProducer]:
    """Yield an idempotent producer, as `app.kafka.clients.producer` does; fences earlier ones of this name.

    ``partitions`` names the topics, with the number of their partitions: there they can write nothing any more.

    A killed process may have left batches on their way, in sockets and in the brokers' queues. If they were written
    after its successor has looked where the run is, documents would come twice. So a run has a transactional id. Its
    next owner asks for it, which raises the producer epoch, and aborts an empty transaction over all partitions: the
    brokers put a marker into each, and from then on refuse whatever an earlier owner sends (KIP-98). When the id is
    granted once more, the markers are in the logs of all replicas. Records are then sent outside of any transaction: no
    reader waits for a commit, or is held up when this process dies.

    aiokafka offers no transaction without records, and no way back from transactions. So two of its private parts are
    used here and in `_end_earlier`, and a third where a `Sender` sends what was refused again; its version is pinned.
    Raises BrokerError where no broker answers; and InputError where the brokers do not allow the name; or, in the
    block, a later one took over.
    """
    try:
        await _end_earlier(settings, name, partitions)
        async with producer(settings, transactional_id=name, **options) as client:
            client._txn_manager.transactional_id = None  # noqa: SLF001 - see `fenced_producer`
            yield client
    except TransactionalIdAuthorizationFailed as error:
        raise InputError(
            f"the brokers do not allow the transactional id {name}: allow it, or do without: --no-resume"
        ) from error
    except ProducerFenced as error:
        raise InputError(
            "another tokenmill produce with the same command has taken over, so this one ends; let that one go on"
        ) from error


async def _end_earlier(settings: Settings, name: str, partitions: Mapping[str, int]) -> None:
    """Take the name over, and put a marker into each partition; they are there when it is granted again."""
    try:
        client_of = producer(settings, transactional_id=name, transaction_timeout_ms=OPEN_MILLISECONDS)
        async with asyncio.timeout(60.0), client_of as client:  # whatever the name was used for
            await client.begin_transaction()
            manager = client._txn_manager  # noqa: SLF001 - see `fenced_producer`
            for topic, count in partitions.items():
                for partition in range(count):
                    manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))
            await client.abort_transaction()
    except TimeoutError as error:
        raise BrokerError(
            f"the brokers do not serve the transactional id {name}: see their logs for __transaction_state (a single "
            f"broker needs transaction.state.log.replication.factor=1), and whether {', '.join(partitions)} take its "
            "end (max.message.bytes, message.timestamp.before.max.ms); or do without: --no-resume"
        ) from error
