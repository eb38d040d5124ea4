"""Records on their way to a topic: one producer at a time for a run, batches, and what was acknowledged."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
    TransactionalIdAuthorizationFailed,
)

from tokenmill.errors import BrokerError, InputError, TopicError

from ...kafka.clients import producer
from ...kafka.security import refused_time
from ...settings import Settings
from .run_position import MARK_HEADER

BATCH_BYTES: Final = 256 * 1024
"""Bytes of a partition's batch: where a broker's speed stops growing, and below a topic's default limit of 1 MiB."""
OPEN_BYTES: Final = 64 << 20
"""Bytes of all partitions' open batches together: a thousand partitions get smaller batches."""
RECORD_BYTES: Final = 32
"""Bytes of a record beside key, value and headers, at most (KIP-98: lengths, deltas, attributes)."""
MARK_BYTES: Final = 1024
"""Bytes for a mark; it takes fewer."""
NO_NUMBER: Final = 1 << 63
"""Above all numbers of documents."""
SILENCE_SECONDS: Final = 60.0
"""How long no acknowledgement may arrive, a broker's restart included, before the run gives up."""
OPEN_MILLISECONDS: Final = 10_000
"""After which the brokers end the empty transaction of a process that was killed in the middle of it; readers of the
partitions wait so long."""
FENCE_SECONDS: Final = 60.0
"""How long the brokers may take to end whatever the name was used for; takes a fraction of a second."""


@dataclass(slots=True)
class Acknowledged:
    """What was acknowledged in one partition: documents, and bytes of their values."""

    documents: int = 0
    bytes: int = 0


def batch_bytes(partitions: int) -> int:
    """Return the size of a batch in bytes."""
    return min(BATCH_BYTES, OPEN_BYTES // partitions)


@dataclass(slots=True)
class _Batch:
    first: int
    """Number of the first document."""
    last: int = 0
    size: int = 0
    value_bytes: int = 0
    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class Sender:
    """Sends numbered documents in batches, in order in each partition, and counts what is acknowledged.

    The client's ``max_batch_size`` is at least ``batch_bytes`` and `MARK_BYTES` more.
    """

    client: AIOKafkaProducer
    topic: str
    batch_bytes: int
    sent: dict[int, Acknowledged]
    """By partition; grows as acknowledgements arrive."""
    mark: Callable[[int, int], bytes] | None = None
    """Gives the mark of a batch: called with the number of its last document, and the lowest number that is not
    acknowledged. None: no marks."""
    _open: dict[int, _Batch] = field(default_factory=dict)
    _under_way: dict["asyncio.Future[Any]", int] = field(default_factory=dict)
    _error: BaseException | None = None

    def put(self, partition: int, key: bytes | None, value: bytes, number: int) -> bool:
        """Add a document to its partition's batch; return False if the batch is full: `send` it, and try again."""
        batch = self._open.get(partition)
        size = len(value) + RECORD_BYTES + (len(key) if key else 0)
        if batch is None:
            batch = self._open[partition] = _Batch(number)
        elif batch.size + size > self.batch_bytes:
            return False
        batch.records.append((key, value))
        batch.size += size
        batch.value_bytes += len(value)
        batch.last = number
        return True

    async def send(self, partition: int) -> None:
        """Hand the partition's open batch to the client, if there is one; waits while the one before is not sent.

        Raises:
            TopicError: the brokers refused an earlier batch.
            KafkaTimeoutError: they do not answer.
            ProducerFenced: another producer of the same run has taken over.

        """
        self._raise_error()
        if partition not in self._open:
            return
        unsettled = min(*(open_.first for open_ in self._open.values()), *self._under_way.values(), NO_NUMBER)
        batch = self._open.pop(partition)
        builder = self.client.create_batch()
        append, now = builder.append, time.time_ns() // 1_000_000
        *before, (last_key, last_value) = batch.records
        fits = True
        for key, value in before:
            fits = append(timestamp=now, key=key, value=value) is not None and fits
        headers = [] if self.mark is None else [(MARK_HEADER, self.mark(batch.last, unsettled))]
        if append(timestamp=now, key=last_key, value=last_value, headers=headers) is None or not fits:
            raise ValueError(f"a batch of {batch.size} bytes does not fit max_batch_size")
        builder.close()
        future = await self.client.send_batch(builder, self.topic, partition=partition)
        self._under_way[future] = batch.first
        future.add_done_callback(partial(self._acknowledged, partition, len(batch.records), batch.value_bytes))

    async def send_open(self) -> None:
        """Hand all open batches to the client; on return they are not acknowledged yet. Raises as `send` does."""
        for partition in list(self._open):
            await self.send(partition)

    async def settle(self) -> None:
        """Send all open batches and wait; on return every document that was put is acknowledged. Raises as `send`.

        Raises:
            KafkaTimeoutError: nothing was acknowledged for `SILENCE_SECONDS`.

        """
        await self.send_open()
        while self._under_way:
            done, _ = await asyncio.wait(self._under_way, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise KafkaTimeoutError
        self._raise_error()

    def _acknowledged(self, partition: int, documents: int, size: int, future: "asyncio.Future[Any]") -> None:
        del self._under_way[future]
        if future.cancelled():
            return
        if error := future.exception():
            self._error = self._error or error
            return
        total = self.sent[partition]
        total.documents += documents
        total.bytes += size

    def _raise_error(self) -> None:
        if self._error is not None:
            raise_for(self.topic, self._error)


def raise_for(topic: str, error: BaseException) -> NoReturn:
    """Raise the error with which a record failed.

    Raises:
        TopicError: the brokers refused it.
        ClockError: they refused its time, which this machine's clock gave.
        BaseException: the error as it is: another producer of the same run has taken over, no broker answers, or it is
            none of Kafka's.

    """
    if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
        raise TopicError(
            f"topic {topic} refuses a record: raise its max.message.bytes, or lower max_record_bytes"
        ) from error
    if isinstance(error, InvalidTimestampError):
        raise refused_time(topic) from error
    if isinstance(error, KafkaError) and not isinstance(error, ProducerFenced | KafkaTimeoutError):
        raise TopicError(f"topic {topic} refuses records: {error}") from error
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
    granted once more, the markers are in the logs of all replicas. Records are then sent outside of any transaction, as
    by any idempotent producer: readers need not wait for a commit, and nobody is held up when this process dies.

    aiokafka offers no transaction without records, and no way back from transactions. So two of its private parts are
    used here and in `_end_earlier`, and nowhere else; its version is pinned, and a test shows that it works.

    Raises:
        BrokerError: no broker answers.
        InputError: the brokers do not allow the name; or, in the block, a later one took over.

    """
    with _fenced(name):
        await _end_earlier(settings, name, partitions)
        async with producer(settings, transactional_id=name, **options) as client:
            client._txn_manager.transactional_id = None  # noqa: SLF001 - see `fenced_producer`
            yield client


async def _end_earlier(settings: Settings, name: str, partitions: Mapping[str, int]) -> None:
    """Take the name over, and put a marker into each partition; they are there when it is granted again."""
    try:
        client_of = producer(settings, transactional_id=name, transaction_timeout_ms=OPEN_MILLISECONDS)
        async with asyncio.timeout(FENCE_SECONDS), client_of as client:
            await client.begin_transaction()
            manager = client._txn_manager  # noqa: SLF001 - see `fenced_producer`
            for topic, count in partitions.items():
                for partition in range(count):
                    manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))
            await client.abort_transaction()
    except TimeoutError as error:
        raise BrokerError(
            f"the brokers do not serve the transactional id {name}: see their logs for __transaction_state (a single "
            "broker needs transaction.state.log.replication.factor=1), or do without: --no-resume"
        ) from error


@contextmanager
def _fenced(name: str) -> Iterator[None]:
    try:
        yield
    except TransactionalIdAuthorizationFailed as error:
        raise InputError(
            f"the brokers do not allow the transactional id {name}: allow it, or do without: --no-resume"
        ) from error
    except ProducerFenced as error:
        raise InputError(
            "another tokenmill produce with the same command has taken over, so this one ends; let that one go on"
        ) from error
