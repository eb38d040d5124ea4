"""What replaces parts of aiokafka for speed, in processes that call `install`; all others have aiokafka as it is.

What is sent, and what is received, is the same, byte for byte.

**Receiving.** aiokafka copies the system's bytes into an object, from there to the end of a `bytearray` that has grown
for it, and of a fetch once more: most of the processor time that fetching megabytes takes. Here the system writes small
answers into one buffer for each connection, and a large one into a buffer of its own, handed on as it is.

**Sending.** aiokafka builds a batch in a buffer that grows, computes its CRC-32C with eight times the instructions that
it takes, and encodes a request from the inside out, copying what is in an array for each array around it. Here a large
record goes to the socket from where it is in memory (`SendBuffers`). What the socket does not take at once is copied by
asyncio (before Python 3.12), and by TLS all is.
"""

import asyncio
import io
import socket
import time
import weakref
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final

import aiokafka.conn
import numpy as np
from aiokafka.conn import AIOKafkaProtocol
from aiokafka.producer import message_accumulator
from aiokafka.protocol.struct import Struct as Request
from aiokafka.protocol.types import Array, Bytes, Int32, Schema
from aiokafka.record.default_records import DefaultRecordMetadata
from aiokafka.record.util import encode_varint
from crc32c import crc32c

from ..broker_contact import CONTACT
from .cluster import require_tested
from .fetched_batches import LENGTH_END, REST, hand_out_packed_batches

SMALL_BYTES: Final = 64 * 1024
"""Size of the buffer of a connection: heartbeats and acknowledgements come in one read."""
VIEW_BYTES: Final = 32 * 1024
"""From here on a part of a large answer may be a view: it is wanted as bytes, for no string of Kafka's protocol is as
long."""
WAKING_BYTES: Final = 1024 * 1024
"""The system wakes us for a large answer when so many of its bytes are there, or its last ones. Each time, the event
loop takes the interpreter from the thread that mills."""
MOST_KEPT: Final = 4
"""How many times its own bytes a view may keep. So all that paused partitions of a worker got is 128 MiB at most, and
where a fetch brings as much of a few partitions, no byte of it is copied."""
LARGE_BYTES: Final = 64 * 1024
"""From here on a value is a batch of its own, which it is anyway: larger than what aiokafka gathers (16 KiB)."""
BEFORE_CRC: Final = Struct(">qiib")
"""A batch's base offset (set by the broker), length after this field, leader epoch, version of the format."""
CRC: Final = Struct(">I")
BATCH_VERSION: Final = 2
TRANSACTIONAL: Final = 0x10
NO_EPOCH: Final = -1

Headers = Sequence[tuple[str, bytes | None]]


def install() -> None:
    """Let this process receive, unpack and send faster, with the same records. Call it before any client is made."""
    require_tested("aiokafka", aiokafka.__version__)
    aiokafka.conn.AIOKafkaProtocol = FrameProtocol
    aiokafka.conn.io = SimpleNamespace(
        BytesIO=lambda data: _LargeAnswer(data) if isinstance(data, memoryview) else io.BytesIO(data)
    )
    hand_out_packed_batches()
    message_accumulator.BatchBuilder = BatchBuilder
    Request.encode = encode


class FrameProtocol(AIOKafkaProtocol, asyncio.BufferedProtocol):  # type: ignore[misc]  # untyped there
    """aiokafka's protocol; its reader keeps the state of the connection, and no bytes pass through it."""

    def __init__(
        self, closed: Any, reader: asyncio.StreamReader, *, loop: asyncio.AbstractEventLoop, **kwargs: Any
    ) -> None:
        """Take over ``reader.readexactly``, the one way in which aiokafka reads."""
        super().__init__(closed, reader, loop=loop, **kwargs)
        self._frame_reader = weakref.ref(reader)  # it holds us: a cycle would stay until Python looks for some
        self._frame_loop = loop
        self._frame_transport: asyncio.ReadTransport | None = None
        self._small = memoryview(b"")  # while no broker answers, connections are tried by the thousand
        self._view = self._small
        """What is being received into: the small buffer, or one for a large answer."""
        self._low = self._high = 0
        """What was received and not read yet is ``view[low:high]``."""
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None
        self._socket: socket.socket | None = None
        """The socket whose low-water mark is set; None with TLS, which holds bytes that we cannot count."""
        self._least = 1
        """That low-water mark: the system wakes us when so many bytes are there, not before."""
        reader.readexactly = self.readexactly  # type: ignore[method-assign,assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to receive, and let requests be `SendBuffers`."""
        super().connection_made(transport)
        if not isinstance(transport, asyncio.ReadTransport):
            raise TypeError(transport)
        self._frame_transport = transport
        if transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")
        self._small = self._view = memoryview(bytearray(SMALL_BYTES))
        take_buffers(transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a hint of no use here
        """Return where the transport may write next."""
        return self._view[self._high :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note that the transport has written; it is held up where there is no room any more."""
        CONTACT.heard()
        self._high += nbytes
        if self._high - self._low >= self._wanted:
            self._wake()
        if self._least > 1:
            self._wait_for(self._wanted - (self._high - self._low))
        if self._high == len(self._view) and self._frame_transport is not None:
            self._frame_transport.pause_reading()

    def eof_received(self) -> bool | None:
        """Tell the reader that no more comes."""
        keep: bool | None = super().eof_received()
        self._wake()
        return keep

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader that no more comes, and why; keep only what was not read yet."""
        if exc is not None:
            exc.__traceback__ = None  # asyncio's frames, which hold the buffer
        super().connection_lost(exc)
        rest = bytes(self._view[self._low : self._high])
        self._small, self._view, self._low, self._high = memoryview(b""), memoryview(rest), 0, len(rest)
        self._wake()

    async def readexactly(self, n: int) -> bytes | memoryview:
        """Return the next ``n`` bytes, as `asyncio.StreamReader.readexactly` does; a view of them if they are many."""
        while self._high - self._low < n:
            reader = self._frame_reader()
            broken = reader.exception() if reader is not None else None
            if broken is not None:
                raise broken
            if reader is None or reader.at_eof():
                raise asyncio.IncompleteReadError(bytes(self._view[self._low : self._high]), n)
            self._make_room(n)
            self._wanted = n
            self._waiter = self._frame_loop.create_future()
            await self._waiter
        frame = self._view[self._low : self._low + n]
        self._low += n
        if self._low == self._high:
            self._low = self._high = 0
            self._view = self._small  # a large answer fills its buffer, which belongs to the holder of the answer
        return bytes(frame) if n <= SMALL_BYTES else frame

    def _make_room(self, n: int) -> None:
        """Let ``n`` bytes from ``low`` on fit into the buffer; go on receiving, if that was held up."""
        if len(self._view) - self._low < n or self._high == len(self._view):
            held = bytes(self._view[self._low : self._high])
            if n > SMALL_BYTES:
                self._view = np.empty(n, np.uint8).data  # not zeroed first, as a bytearray would be
            self._view[: len(held)] = held
            self._low, self._high = 0, len(held)
            self._wait_for(n - len(held))
        if self._frame_transport is not None:
            self._frame_transport.resume_reading()

    def _wait_for(self, missing: int) -> None:
        """Let the system wake us for a good part of what is missing, not for each piece as it comes."""
        least = max(1, min(missing, WAKING_BYTES))
        if self._socket is not None and least != self._least:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._least = least

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _LargeAnswer:
    """A large answer, read as `io.BytesIO` is; a good part is a view, which keeps all: `MOST_KEPT` times its own."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def read(self, size: int) -> bytes | memoryview:
        part = self._data[self._at : self._at + size]
        self._at += len(part)
        return part if len(part) >= max(VIEW_BYTES, len(self._data) / MOST_KEPT) else bytes(part)


class SendBuffers:
    """Bytes in several places. `len` says how many they are, and bytes can be put before them: ``b"head" + parts``."""

    __slots__ = ("_size", "each")

    def __init__(self, each: Iterable[bytes | bytearray | memoryview]) -> None:
        """Take buffers that are not changed any more."""
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


class _LargeRecordBatch:
    """One record, not compressed; for aiokafka's builder (https://kafka.apache.org/documentation/#recordbatch)."""

    def __init__(self, *, is_transactional: bool) -> None:
        self._attributes = TRANSACTIONAL if is_transactional else 0
        self._state = (-1, -1, 0)
        self._timestamp = 0
        self._record: Sequence[bytes | bytearray | memoryview] = ()

    def append(
        self, offset: int, timestamp: int | None, key: bytes | None, value: bytes | memoryview, headers: Headers
    ) -> Any:
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
        self._state = (producer_id, producer_epoch, base_sequence)

    def size(self) -> int:
        return BEFORE_CRC.size + CRC.size + REST.size + self._record_bytes()

    def build(self) -> SendBuffers:
        body = REST.pack(self._attributes, 0, self._timestamp, self._timestamp, *self._state, 1)
        checksum = crc32c(body)
        for part in self._record:
            checksum = crc32c(part, checksum)
        before = BEFORE_CRC.pack(0, self.size() - LENGTH_END, NO_EPOCH, BATCH_VERSION)
        length, head, value, tail = self._record
        return SendBuffers((b"".join((before, CRC.pack(checksum), body, length, head)), value, tail))

    def _record_bytes(self) -> int:
        return sum(map(len, self._record))


def _add_bytes(buffer: bytearray, content: bytes | None) -> None:
    encode_varint(-1 if content is None else len(content), buffer.append)
    buffer += content or b""


class BatchBuilder(message_accumulator.BatchBuilder):  # type: ignore[misc]  # untyped there
    """aiokafka's, with a `_LargeRecordBatch` where the first record is large."""

    def __init__(self, batch_size: int, compression_type: int, *, is_transactional: bool, **serializers: Any) -> None:
        super().__init__(batch_size, compression_type, is_transactional=is_transactional, **serializers)
        self._plain = not compression_type and not any(serializers.values())
        self._transactional = is_transactional

    def append(
        self, *, timestamp: int | None, key: bytes | None, value: bytes | None, headers: Headers | None = None
    ) -> Any:
        """Take a record, and return its metadata; None when the batch is full."""
        if self._plain and not self._relative_offset and value is not None and len(value) >= LARGE_BYTES:
            self._builder = _LargeRecordBatch(is_transactional=self._transactional)
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
