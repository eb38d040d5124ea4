"""Answers arrive as they were sent, whatever the pieces in which they come, and in one buffer that stays."""

import asyncio
import fcntl
import gc
import io
import socket
import struct
import termios
import weakref
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TopicFactory
from tokenmill.app.kafka import fastpath as frames_module
from tokenmill.app.kafka.clients import consumer, producer, read_range
from tokenmill.app.kafka.fastpath import MOST_KEPT, SMALL_BYTES, VIEW_BYTES, WAKING_BYTES, FrameProtocol, _LargeAnswer
from tokenmill.app.settings import Settings

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES]))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FrameProtocol, asyncio.StreamReader, socket.socket]]:
    """Give the block a connection: its protocol, the reader that aiokafka is given, and the other end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=SMALL_BYTES, loop=loop)
    protocol = FrameProtocol(loop.create_future(), reader, loop=loop)
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport, _ = await loop.create_connection(lambda: protocol, *server.getsockname())
        theirs, _ = server.accept()
    theirs.setblocking(False)
    try:
        yield protocol, reader, theirs
    finally:
        transport.close()
        theirs.close()


def unread(protocol: FrameProtocol) -> int:
    """Return how many bytes the system holds that the connection has not taken yet."""
    count = array("i", [0])
    assert protocol._socket is not None
    fcntl.ioctl(protocol._socket.fileno(), termios.FIONREAD, count)
    return count[0]


async def looked_around() -> None:
    for _ in range(2):
        await asyncio.sleep(0)


async def received(reader: asyncio.StreamReader) -> bytes | memoryview:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def frame(number: int, size: int) -> bytes:
    return struct.pack(">i", size) + (b"%d|" % number * (size // 2 + 1))[:size]


@given(
    st.lists(SIZES, min_size=1, max_size=12),
    st.lists(st.integers(1, 2 * SMALL_BYTES), min_size=1, max_size=8),
    st.sampled_from([1, 1000, SMALL_BYTES, WAKING_BYTES]),
)
@pytest.mark.slow
def test_frames_are_received_as_they_were_sent_in_whatever_pieces(
    sizes: list[int], pieces: list[int], waking: int
) -> None:
    frames = [frame(number, size) for number, size in enumerate(sizes)]
    sent = b"".join(frames)

    async def exchange() -> list[bytes | memoryview]:
        async with connected() as (_, reader, theirs):

            async def send() -> None:
                at = number = 0
                while at < len(sent):
                    # the rest in one: a frame of megabytes in single bytes takes seconds, and shows no more
                    size = pieces[number % len(pieces)] if number < 500 else len(sent)
                    await asyncio.get_running_loop().sock_sendall(theirs, sent[at : at + size])
                    at, number = at + size, number + 1
                    await asyncio.sleep(0)

            sending = asyncio.create_task(send())
            answers = [await received(reader) for _ in frames]
            await sending
            return answers

    with patch.object(frames_module, "WAKING_BYTES", waking):
        assert asyncio.run(exchange()) == [one[4:] for one in frames]


@pytest.mark.slow
async def test_a_large_answer_wakes_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its many pieces are taken together, and its last bytes, and what comes behind it, as soon as they are there."""
    taken: list[int] = []
    updated = FrameProtocol.buffer_updated

    def counted(self: FrameProtocol, size: int) -> None:
        taken.append(size)
        updated(self, size)

    monkeypatch.setattr(FrameProtocol, "buffer_updated", counted)
    large, small, piece = frame(1, WAKING_BYTES + 500_000), frame(2, 3), 50_000
    async with connected() as (protocol, reader, theirs):
        waiting = asyncio.create_task(received(reader))
        for at in range(0, len(large), piece):
            await asyncio.get_running_loop().sock_sendall(theirs, large[at : at + piece])
            while sum(taken) + unread(protocol) < min(at + piece, len(large)):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            await looked_around()
        assert await waiting == large[4:]
        theirs.send(small)
        assert await received(reader) == small[4:]
    assert taken[-1] == len(small)
    assert len(taken) <= 6, "the first piece, which says how large it is; a mebibyte; the rest; the next answer"


async def test_more_than_the_buffer_waits_until_it_is_read() -> None:
    """Nobody reads at first: what does not fit stays with the sender, and nothing is lost."""
    frames = [frame(number, SMALL_BYTES // 2) for number in range(40)]
    async with connected() as (protocol, reader, theirs):
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, b"".join(frames)))
        while protocol._high < SMALL_BYTES:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        await looked_around()
        assert protocol._high == SMALL_BYTES
        assert [await received(reader) for _ in frames] == [one[4:] for one in frames]
        await sending


async def test_a_large_answer_is_whoevers_that_holds_it() -> None:
    async with connected() as (protocol, reader, theirs):
        frames = [frame(number, size) for number, size in enumerate((3_000_000, 3_000_000, 5, SMALL_BYTES + 1))]
        answers = []
        for one in frames:
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, one))
            answers.append(await received(reader))
            await sending
            assert len(protocol._view) == SMALL_BYTES
        assert [bytes(answer) for answer in answers] == [one[4:] for one in frames]


@given(st.lists(st.sampled_from([0, 1, 4, 8, VIEW_BYTES, SMALL_BYTES - 1, SMALL_BYTES, 2 * SMALL_BYTES]), max_size=6))
def test_a_large_answer_is_read_as_a_file_is(sizes: list[int]) -> None:
    """To its end and over it. Only a part that is a good part of it keeps all of it; others are bytes of their own."""
    data = bytes(range(256)) * (MOST_KEPT * SMALL_BYTES // 256)
    ours, file = _LargeAnswer(memoryview(data)), io.BytesIO(data)
    for size in sizes:
        part = ours.read(size)
        assert bytes(part) == file.read(size)
        assert isinstance(part, bytes) == (MOST_KEPT * len(part) < len(data))


def test_what_could_be_a_string_is_never_a_view() -> None:
    """Strings are decoded from bytes, and may be a good part of an answer that is just large."""
    frame = _LargeAnswer(memoryview(bytes(SMALL_BYTES + 1)))
    assert isinstance(frame.read(VIEW_BYTES - 1), bytes)
    assert isinstance(frame.read(VIEW_BYTES), memoryview)


async def test_a_connection_that_ends_says_what_was_missing() -> None:
    """Who waits for the rest of a frame learns that it does not come; so does who asks later."""
    async with connected() as (_, reader, theirs):
        waiting = asyncio.create_task(reader.readexactly(10))
        await asyncio.get_running_loop().sock_sendall(theirs, b"only")
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(asyncio.IncompleteReadError) as known:
            await waiting
        assert (known.value.partial, known.value.expected) == (b"only", 10)
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(10)


async def test_a_connection_that_breaks_says_why() -> None:
    """A reset is the error that it is with asyncio's own reader."""
    async with connected() as (protocol, reader, theirs):
        waiting = asyncio.create_task(reader.readexactly(10))
        await asyncio.sleep(0)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets it
        theirs.close()
        with pytest.raises(ConnectionResetError):
            await waiting
        assert len(protocol._view) == 0


async def test_a_connection_that_came_to_nothing_leaves_nothing() -> None:
    """Thousands are tried while brokers are away: none has a buffer, and none waits for Python to look for cycles."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = FrameProtocol(loop.create_future(), reader, loop=loop)
    assert len(protocol._view) == 0
    left = weakref.ref(protocol)
    gc.disable()
    try:
        del protocol, reader
        assert left() is None
    finally:
        gc.enable()


async def test_what_came_before_the_end_is_still_read() -> None:
    """The last answers of a broker that closes the connection at once are not lost."""
    frames = [frame(number, 1000) for number in range(3)]
    async with connected() as (protocol, reader, theirs):
        theirs.send(b"".join(frames))
        theirs.close()
        while protocol._high < sum(map(len, frames)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        protocol._frame_transport.close()  # type: ignore[union-attr]
        while len(protocol._small):  # noqa: ASYNC110 - until it knows that the connection is lost
            await asyncio.sleep(0)
        assert [await received(reader) for _ in frames] == [one[4:] for one in frames]
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(1)


@pytest.mark.usefixtures("fast")
async def test_aiokafka_receives_through_it(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a client reads comes this way: asyncio's reader is given nothing. Fails where a new aiokafka differs."""

    def fed(*_: object) -> None:
        raise AssertionError("bytes went through asyncio's StreamReader")

    monkeypatch.setattr(asyncio.StreamReader, "feed_data", fed)
    partition = TopicPartition(topic(), 0)
    values = [bytes([number]) * 300_000 for number in range(20)]
    async with producer(settings) as client:
        for value in values:
            await client.send_and_wait(partition.topic, value, partition=0)
    async with consumer(settings) as client:
        found = [record.value async for record in read_range(client, partition, 0, len(values))]
        connections = list(client._client._conns.values())
        protocols = {type(connection._writer.transport.get_protocol()) for connection in connections}
    assert found == values
    assert protocols == {FrameProtocol}
