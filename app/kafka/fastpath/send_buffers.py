"""Sending: a large record goes to the socket from where it is in memory, and its checksum is cheap.

aiokafka builds a batch in a buffer that grows, computes its CRC-32C with eight times the instructions that it takes,
and encodes a request from the inside out: what is in an array in an array is copied for each of them, and then for the
request's header and for its length. For a message of blocks, that is most of what publishing costs. Here a large record
is not copied (`SendBuffers`). What is sent is the same, byte for byte.

What the socket does not take at once is copied by asyncio (before Python 3.12), and by TLS all is.
"""

import asyncio
import time
import weakref
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from struct import Struct
from typing import Any, Final

from aiokafka.producer import message_accumulator
from aiokafka.protocol.struct import Struct as Request
from aiokafka.protocol.types import Array, Bytes, Int32, Schema
from aiokafka.record.default_records import DefaultRecordMetadata
from aiokafka.record.util import encode_varint
from crc32c import crc32c

LARGE_BYTES: Final = 64 * 1024
"""From here on a value is a batch of its own, which it is anyway: larger than what aiokafka gathers (16 KiB)."""
BEFORE_CRC: Final = Struct(">qiib")
"""A batch's base offset (set by the broker), length after this field, leader epoch, version of the format."""
CRC: Final = Struct(">I")
AFTER_CRC: Final = Struct(">hiqqqhii")
"""Attributes, last offset delta, first and largest timestamp, producer's id, epoch and sequence, number of records."""
LENGTH_END: Final = 12
"""What the length counts from."""
VERSION: Final = 2
TRANSACTIONAL: Final = 0x10
NO_EPOCH: Final = -1

Headers = Sequence[tuple[str, bytes | None]]


class SendBuffers:
    """Bytes in several places. `len` says how many they are, and bytes can be put before them: ``b"head" + parts``."""

    __slots__ = ("_size", "each")

    def __init__(self, each: Iterable[bytes | bytearray | memoryview]) -> None:
        """Take buffers that nobody changes any more."""
        self.each = tuple(each)
        self._size = sum(map(len, self.each))

    def __len__(self) -> int:
        return self._size

    def __radd__(self, before: bytes) -> "SendBuffers":
        return SendBuffers((before, *self.each))


def take_buffers(transport: asyncio.BaseTransport) -> None:
    """Let ``transport.write`` take `SendBuffers` as well."""
    if not isinstance(transport, asyncio.WriteTransport):
        raise TypeError(transport)
    write, itself = type(transport).write, weakref.ref(transport)  # a cycle would keep TLS's buffers for long

    def write_each(data: bytes | bytearray | memoryview | SendBuffers) -> None:
        transport = itself()
        if transport is not None:
            for part in data.each if isinstance(data, SendBuffers) else (data,):
                write(transport, part)

    transport.write = write_each  # type: ignore[method-assign]


class LargeRecordBatch:
    """A batch of one record, not compressed; replaces aiokafka's ``DefaultRecordBatchBuilder``.

    https://kafka.apache.org/documentation/#recordbatch
    """

    def __init__(self, *, is_transactional: bool) -> None:
        self._attributes = TRANSACTIONAL if is_transactional else 0
        self._state = (-1, -1, 0)
        self._timestamp = 0
        self._record: Sequence[bytes | bytearray | memoryview] = ()

    def append(
        self, offset: int, timestamp: int | None, key: bytes | None, value: bytes | memoryview, headers: Headers
    ) -> Any:
        """Take the one record and return its metadata; None when it is there already."""
        if self._record:
            return None
        self._timestamp = int(time.time() * 1000) if timestamp is None else timestamp
        head = bytearray(3)  # no attributes, and no distance from the batch's timestamp and offset
        _add_bytes(head, key)
        encode_varint(len(value), head.append)
        tail = bytearray()
        encode_varint(len(headers), tail.append)
        for name, content in headers:
            _add_bytes(tail, name.encode())
            _add_bytes(tail, content)
        length = bytearray()
        encode_varint(len(head) + len(value) + len(tail), length.append)
        self._record = (length, head, memoryview(value), tail)  # what is cut off a view is not copied
        return DefaultRecordMetadata(offset, self._record_bytes(), self._timestamp)

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Take what makes the producer idempotent."""
        self._state = (producer_id, producer_epoch, base_sequence)

    def size(self) -> int:
        """Return the bytes of the batch."""
        return BEFORE_CRC.size + CRC.size + AFTER_CRC.size + self._record_bytes()

    def build(self) -> SendBuffers:
        """Return the batch as it is sent."""
        body = AFTER_CRC.pack(self._attributes, 0, self._timestamp, self._timestamp, *self._state, 1)
        checksum = crc32c(body)
        for part in self._record:
            checksum = crc32c(part, checksum)
        before = BEFORE_CRC.pack(0, self.size() - LENGTH_END, NO_EPOCH, VERSION)
        length, head, value, tail = self._record
        return SendBuffers((b"".join((before, CRC.pack(checksum), body, length, head)), value, tail))

    def _record_bytes(self) -> int:
        return sum(map(len, self._record))


def _add_bytes(buffer: bytearray, content: bytes | None) -> None:
    """Append the length of a field, and the field; None has the length -1."""
    encode_varint(-1 if content is None else len(content), buffer.append)
    buffer += content or b""


class BatchBuilder(message_accumulator.BatchBuilder):  # type: ignore[misc]  # untyped there
    """aiokafka's, with a `LargeRecordBatch` where the first record is large."""

    def __init__(self, batch_size: int, compression_type: int, *, is_transactional: bool, **serializers: Any) -> None:
        super().__init__(batch_size, compression_type, is_transactional=is_transactional, **serializers)
        self._plain = not compression_type and not any(serializers.values())
        self._transactional = is_transactional

    def append(
        self, *, timestamp: int | None, key: bytes | None, value: bytes | None, headers: Headers | None = None
    ) -> Any:
        """Take a record, and return its metadata; None when the batch is full."""
        if self._plain and not self._relative_offset and value is not None and len(value) >= LARGE_BYTES:
            self._builder = LargeRecordBatch(is_transactional=self._transactional)
        return super().append(timestamp=timestamp, key=key, value=value, headers=headers)

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)


def encode(self: Request) -> bytes | SendBuffers:
    """Return a request as it is sent; `SendBuffers` where it has a large record."""
    parts: list[Any] = []
    _gather(self.SCHEMA, [self.__dict__[name] for name in self.SCHEMA.names], parts)
    if not any(type(part) is SendBuffers for part in parts):
        return b"".join(parts)
    each: list[Any] = []
    for is_large, run in groupby(parts, lambda part: type(part) is SendBuffers):
        together = list(run)
        each += chain.from_iterable(part.each for part in together) if is_large else [b"".join(together)]
    return SendBuffers(each)


def _gather(kind: Any, value: Any, parts: list[Any]) -> None:
    if type(kind) is Schema:
        if len(value) != len(kind.fields):
            raise ValueError(f"{len(value)} values for the fields {kind.names}")
        for field, item in zip(kind.fields, value, strict=True):
            _gather(field, item, parts)
    elif type(kind) is Array and value is not None:
        parts.append(Int32.encode(len(value)))
        for item in value:
            _gather(kind.array_of, item, parts)
    elif kind is Bytes and value is not None:
        parts += (Int32.encode(len(value)), value)
    else:
        parts.append(kind.encode(value))


def send_in_place() -> None:
    """Let producers build so and clients encode so from now on; their connections must take `SendBuffers`."""
    message_accumulator.BatchBuilder = BatchBuilder
    Request.encode = encode
