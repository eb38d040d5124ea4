"""Batches of records on their way to a topic, and what was acknowledged of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder

from tokenmill.errors import TopicError

BATCH_BYTES: Final = 256 * 1024
"""Of one partition's batch: where a broker's speed stops growing, and below any topic's default limit of 1 MiB."""
OPEN_BYTES: Final = 64 << 20
"""Of all partitions' open batches together, so that a thousand partitions get smaller batches."""
SILENCE_SECONDS: Final = 60.0
"""How long acknowledgements may stay away, a broker's restart included, before the run is given up."""


@dataclass(slots=True)
class Sent:
    """What was acknowledged in one partition."""

    documents: int = 0
    bytes: int = 0


def batch_bytes(partitions: int) -> int:
    """Return the size of a batch, for a producer's ``max_batch_size``."""
    return min(BATCH_BYTES, OPEN_BYTES // partitions)


@dataclass(slots=True)
class Sender:
    """Sends records in batches, each partition's in the order in which they were added; counts when acknowledged."""

    client: AIOKafkaProducer
    topic: str
    sent: dict[int, Sent]
    """By partition; grows as acknowledgements arrive."""
    _open: dict[int, tuple[BatchBuilder, Sent]] = field(default_factory=dict)
    _under_way: set["asyncio.Future[Any]"] = field(default_factory=set)
    _error: BaseException | None = None

    async def add(
        self, partition: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Put a record behind the others of its partition; waits while the partition's last batch has not left.

        Raises:
            TopicError: the brokers refused an earlier batch.
            KafkaTimeoutError: they do not answer.

        """
        builder, content = self._builder(partition)
        if builder.append(timestamp=None, key=key, value=value, headers=list(headers)) is None:
            await self._send(partition)
            builder, content = self._builder(partition)
            builder.append(timestamp=None, key=key, value=value, headers=list(headers))  # the first one always fits
        content.documents += 1
        content.bytes += len(value or b"")

    async def send_open(self) -> None:
        """Send all open batches now; on return they are handed over, not acknowledged. Raises as `add` does."""
        for partition in list(self._open):
            await self._send(partition)

    async def settle(self) -> None:
        """Send all open batches and wait; on return every record that was added is acknowledged.

        Raises:
            TopicError: the brokers refused a batch.
            KafkaTimeoutError: nothing was acknowledged for `SILENCE_SECONDS`.

        """
        await self.send_open()
        while self._under_way:
            done, _ = await asyncio.wait(self._under_way, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise KafkaTimeoutError
        self._raise_error()

    def _builder(self, partition: int) -> tuple[BatchBuilder, Sent]:
        if partition not in self._open:
            self._open[partition] = (self.client.create_batch(), Sent())
        return self._open[partition]

    async def _send(self, partition: int) -> None:
        self._raise_error()
        builder, content = self._open.pop(partition)
        builder.close()
        future = await self.client.send_batch(builder, self.topic, partition=partition)
        self._under_way.add(future)
        future.add_done_callback(partial(self._acknowledged, partition, content))

    def _acknowledged(self, partition: int, content: Sent, future: "asyncio.Future[Any]") -> None:
        self._under_way.discard(future)
        if future.cancelled():
            return
        if error := future.exception():
            self._error = self._error or error
            return
        total = self.sent[partition]
        total.documents += content.documents
        total.bytes += content.bytes

    def _raise_error(self) -> None:
        if self._error is None:
            return
        if isinstance(self._error, MessageSizeTooLargeError | RecordListTooLargeError):
            raise TopicError(
                f"topic {self.topic} refuses a record: raise its max.message.bytes, or lower max_record_bytes"
            ) from self._error
        if isinstance(self._error, KafkaError):
            raise TopicError(f"topic {self.topic} refuses records: {self._error}") from self._error
        raise self._error
