"""Receiving answers from brokers: where they are read from, instead of into buffers that grow and are copied.

aiokafka reads through asyncio's `StreamReader`: the system's bytes are copied into an object, from there to the end of
a `bytearray` that has grown for it, and that is emptied again with every answer; of a fetch, what the log holds is
copied once more. For megabytes that is most of the processor time that fetching takes. Here the system writes small
answers into one buffer for each connection, and a large one into a buffer of its own, which is handed on as it is.
"""

import asyncio
import io
import socket
import weakref
from types import SimpleNamespace
from typing import Any, Final

import aiokafka.conn
import numpy as np
from aiokafka.conn import AIOKafkaProtocol

from ...broker_contact import CONTACT
from .send_buffers import take_buffers

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


class FrameProtocol(AIOKafkaProtocol, asyncio.BufferedProtocol):  # type: ignore[misc]  # untyped there
    """aiokafka's protocol; its reader keeps the state of the connection, and no bytes pass through it."""

    def __init__(
        self,
        closed: "asyncio.Future[None]",
        reader: asyncio.StreamReader,
        *,
        loop: asyncio.AbstractEventLoop,
        **kwargs: Any,
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
        """Tell who waits that no more comes."""
        keep: bool | None = super().eof_received()
        self._wake()
        return keep

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits that no more comes, and why; keep only what was not read yet."""
        if exc is not None:
            exc.__traceback__ = None  # asyncio's frames, which hold the buffer
        super().connection_lost(exc)
        rest = bytes(self._view[self._low : self._high])
        self._small, self._view, self._low, self._high = memoryview(b""), memoryview(rest), 0, len(rest)
        self._wake()

    async def readexactly(self, n: int) -> bytes | memoryview:
        """Return the next ``n`` bytes, as `asyncio.StreamReader.readexactly` does; a view of them if they are many.

        Raises:
            IncompleteReadError: the connection ended before.
            OSError: it broke.

        """
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
            self._view = self._small  # a large answer fills its buffer, which is whoever's that holds the answer
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


class LargeAnswer:
    """A large answer, read as `io.BytesIO` is read, but for a part that is a good part of it: that is a view.

    A view keeps the whole answer. What a paused partition got may be kept for long, and with it the rest of the answer,
    which other partitions got: at most `MOST_KEPT` times as much as is its own.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def read(self, size: int) -> bytes | memoryview:
        """Return the next ``size`` bytes, or as many as there are."""
        part = self._data[self._at : self._at + size]
        self._at += len(part)
        return part if len(part) >= max(VIEW_BYTES, len(self._data) / MOST_KEPT) else bytes(part)


def receive_in_place() -> None:
    """Let all connections of this process that are made from now on receive so."""
    aiokafka.conn.AIOKafkaProtocol = FrameProtocol
    aiokafka.conn.io = SimpleNamespace(BytesIO=_readable)


def _readable(data: bytes | memoryview) -> io.BytesIO | LargeAnswer:
    return LargeAnswer(data) if isinstance(data, memoryview) else io.BytesIO(data)
