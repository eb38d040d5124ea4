"""The fast path: installed where it fits, it receives and sends what aiokafka would, byte for byte."""

import asyncio
import fcntl
import gc
import inspect
import io
import pkgutil
import socket
import struct
import subprocess
import sys
import termios
import weakref
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any
from unittest.mock import Mock, patch

import aiokafka
import aiokafka.protocol
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.struct import Struct
from aiokafka.protocol.types import Array, Boolean, Bytes, Int8, Int16, Int32, Int64, Schema, String, UInt32
from hypothesis import given
from hypothesis import strategies as st

from tests.app.conftest import rest, until
from tests.app.kafka.conftest import REPLACED
from tests.conftest import TopicFactory
from tokenmill.app.kafka import fastpath
from tokenmill.app.kafka.clients import consumer, producer, read_range
from tokenmill.app.kafka.fastpath import LARGE_BYTES, SMALL_BYTES, BatchBuilder, FrameProtocol, SendBuffers
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

IMPORTING = """
import aiokafka.client, aiokafka.conn, aiokafka.consumer.fetcher, aiokafka.producer.message_accumulator
import aiokafka.protocol.struct
def found():
    return [
        aiokafka.client.create_conn, aiokafka.conn.AIOKafkaProtocol, aiokafka.conn.io,
        aiokafka.consumer.fetcher.MemoryRecords, aiokafka.consumer.fetcher.PartitionRecords,
        aiokafka.producer.message_accumulator.BatchBuilder, aiokafka.protocol.struct.Struct.encode,
    ]
before = found()
import tokenmill.app.mill.app, tokenmill.app.segments.app, tokenmill.app.worker.run, tokenmill.app.tools.verify
import tokenmill.app.kafka.fetched_batches, tokenmill.app.kafka.fastpath, tokenmill.app.segments.mirror
import tokenmill.app.cli.produce
assert before == found()
"""


def replaced() -> list[object]:
    return [getattr(owner, name) for owner, name in REPLACED]


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_importing_replaces_nothing_in_aiokafka() -> None:
    """Neither the service's modules nor those of the fast path; in a process of its own, for this one has clients."""
    subprocess.run([sys.executable, "-c", IMPORTING], check=True)


def test_it_is_installed_once_and_for_all(fast: None) -> None:
    assert all(thing.__module__.startswith("tokenmill.") for thing in replaced() if hasattr(thing, "__module__"))
    before = replaced()[0], replaced()[2:]
    fastpath.install()
    assert (replaced()[0], replaced()[2:]) == before


def test_another_aiokafka_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka, "__version__", "0.99.0")
    before = replaced()
    with pytest.raises(ImportError, match=r"aiokafka 0\.99\.0 is not .*: install 0\.14\.0"):
        fastpath.install()
    assert replaced() == before


async def test_other_consumers_of_the_process_get_aiokafkas_own_records(
    broker: Broker, settings: Settings, topic: TopicFactory, fast: None
) -> None:
    partition = TopicPartition(topic(), 0)
    values = [b"%d" % number for number in range(300)] + [b"x" * 300_000]
    async with producer(settings, linger_ms=20) as client:
        for value in values:
            await client.send(partition.topic, value, partition=0)
        await client.flush()
    other = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await other.start()
    try:
        other.assign([partition])
        other.seek(partition, 5)
        found = (await other.getmany(timeout_ms=5000, max_records=10))[partition]
        assert await other.position(partition) == 15
        while len(found) < len(values) - 5:
            found += (await other.getmany(timeout_ms=5000)).get(partition, [])
    finally:
        await other.stop()
    assert {type(record) for record in found} == {ConsumerRecord}
    assert {(record.topic, record.partition) for record in found} == {partition}
    assert [record.value for record in found] == list(islice(values, 5, None))
    async with consumer(settings) as client:
        ours = [record async for record in read_range(client, partition, 5, len(values))]
    assert not any(isinstance(record, ConsumerRecord) for record in ours)
    all_of = [(one.offset, one.key, one.value) for one in found]
    assert [(one.offset, one.key, bytes(one.value or b"")) for one in ours] == all_of


@pytest.mark.usefixtures("both_ways")
async def test_records_are_the_same_both_ways(settings: Settings, topic: TopicFactory) -> None:
    """Small ones and large ones among each other, over a broker, with keys, headers and timestamps."""
    partition = TopicPartition(topic(retention_ms=-1), 0)  # its timestamps are of 1970
    sent = [(b"%d" % n, b"%d" % n * (70_000 if n % 3 else 1), 1000 + n, [("header", b"h" * n)]) for n in range(30)]
    async with producer(settings) as client:
        for key, value, moment, headers in sent:
            await client.send(partition.topic, value, key=key, timestamp_ms=moment, headers=headers, partition=0)
        await client.flush()
    async with consumer(settings) as client:
        found = [record async for record in read_range(client, partition, 0, len(sent))]
    assert [(one.key, bytes(one.value or b""), one.timestamp, list(one.headers)) for one in found] == sent


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


async def received(reader: asyncio.StreamReader) -> bytes | memoryview:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def frame(number: int, size: int) -> bytes:
    return struct.pack(">i", size) + (b"%d|" % number * (size // 2 + 1))[:size]


@given(
    st.lists(SIZES, min_size=1, max_size=12),
    st.lists(st.integers(1, 2 * SMALL_BYTES), min_size=1, max_size=8),
    st.sampled_from([1, 1000, SMALL_BYTES, fastpath.WAKING_BYTES]),
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

    with patch.object(fastpath, "WAKING_BYTES", waking):
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
    large, small, piece = frame(1, fastpath.WAKING_BYTES + 500_000), frame(2, 3), 50_000
    async with connected() as (protocol, reader, theirs):
        waiting = asyncio.create_task(received(reader))
        for at in range(0, len(large), piece):
            await asyncio.get_running_loop().sock_sendall(theirs, large[at : at + piece])
            await until(lambda: sum(taken) + unread(protocol) >= min(at + piece, len(large)))  # noqa: B023
            await rest(2)
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
        await until(lambda: protocol._high >= SMALL_BYTES)
        await rest(2)
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


@given(
    st.lists(
        st.sampled_from([0, 1, 4, 8, fastpath.VIEW_BYTES, SMALL_BYTES - 1, SMALL_BYTES, 2 * SMALL_BYTES]), max_size=6
    )
)
def test_a_large_answer_is_read_as_a_file_is(sizes: list[int]) -> None:
    """To its end and over it. Only a part that is a good part of it keeps all of it; others are bytes of their own."""
    data = bytes(range(256)) * (fastpath.MOST_KEPT * SMALL_BYTES // 256)
    ours, file = fastpath._LargeAnswer(memoryview(data)), io.BytesIO(data)
    for size in sizes:
        part = ours.read(size)
        assert bytes(part) == file.read(size)
        assert isinstance(part, bytes) == (fastpath.MOST_KEPT * len(part) < len(data))


def test_what_could_be_a_string_is_never_a_view() -> None:
    """Strings are decoded from bytes, and may be a good part of an answer that is just large."""
    frame = fastpath._LargeAnswer(memoryview(bytes(SMALL_BYTES + 1)))
    assert isinstance(frame.read(fastpath.VIEW_BYTES - 1), bytes)
    assert isinstance(frame.read(fastpath.VIEW_BYTES), memoryview)


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
        await until(lambda: protocol._high >= sum(map(len, frames)))
        protocol._frame_transport.close()  # type: ignore[union-attr]
        await until(lambda: not len(protocol._small))  # it knows that the connection is lost
        assert [await received(reader) for _ in frames] == [one[4:] for one in frames]
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(1)


@pytest.mark.usefixtures("fast")
async def test_aiokafka_receives_through_it(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a client reads comes this way: asyncio's reader is given nothing. Fails where a new aiokafka differs."""
    fed = Mock(side_effect=AssertionError("bytes went through asyncio's StreamReader"))
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


(THEIRS,) = BatchBuilder.__bases__
LARGE = st.integers(0, 300).map(lambda more: bytes(range(256)) * (LARGE_BYTES // 256) + b"%d" % more * more)
HEADERS = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=200)), max_size=3)
KEYS = st.none() | st.binary(max_size=100)
RECORDS = st.fixed_dictionaries({"timestamp": st.integers(0, 2**62), "key": KEYS, "value": LARGE, "headers": HEADERS})
STATES = st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(0, 2**31 - 1))
INTEGERS = {Int8: 8, Int16: 16, Int32: 32, Int64: 64}
FLAT: dict[Any, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for kind, bits in INTEGERS.items()},
    UInt32: st.integers(0, 2**32 - 1),
    Boolean: st.booleans(),
    Bytes: st.none() | st.binary(max_size=300),
}


@given(record=RECORDS, state=STATES, transactional=st.booleans())
def test_a_large_record_is_the_batch_that_aiokafka_makes_of_it(
    record: dict[str, Any], state: tuple[int, int, int], *, transactional: bool
) -> None:
    ours, theirs = (kind(16384, 0, is_transactional=transactional) for kind in (BatchBuilder, THEIRS))
    found, expected = ours.append(**record), theirs.append(**record)
    assert (found.offset, found.timestamp, found.size) == (expected.offset, expected.timestamp, expected.size)
    assert isinstance(ours._builder, fastpath._LargeRecordBatch)
    for builder in (ours, theirs):
        assert builder.append(timestamp=None, key=None, value=b"the next one") is None
        builder._set_producer_state(*state)
    assert ours.size() == theirs.size()
    assert b"".join(ours._build().each) == bytes(theirs._build())
    assert len(ours._build()) == len(theirs._build())


@pytest.mark.parametrize("gzip", [0, 1])
def test_small_records_and_compressed_ones_are_batched_by_aiokafka(gzip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a large record that stands first, and is sent as it is, is a batch of its own."""
    monkeypatch.setattr("gzip.time.time", lambda: 1.0)  # it is in what gzip makes
    ours, theirs = (kind(3 * LARGE_BYTES, gzip, is_transactional=False) for kind in (BatchBuilder, THEIRS))
    for value in (b"x" * (LARGE_BYTES if gzip else 1), None, b"y" * LARGE_BYTES, b"z" * 2 * LARGE_BYTES):
        record: dict[str, Any] = {"timestamp": 1, "key": b"k", "value": value, "headers": [("name", b"content")]}
        assert (ours.append(**record) is None) == (theirs.append(**record) is None)
    for builder in (ours, theirs):
        builder._set_producer_state(7, 1, 5)
    assert ours.record_count() == theirs.record_count() == 3
    assert bytes(ours._build()) == bytes(theirs._build())


def requests() -> Iterator[type[Struct]]:
    for module in pkgutil.iter_modules(aiokafka.protocol.__path__):
        for _, found in inspect.getmembers(import_module(f"aiokafka.protocol.{module.name}"), inspect.isclass):
            plain = issubclass(found, Struct) and found.__init__ is Struct.__init__
            if plain and not inspect.isabstract(found):
                yield found


def values(kind: Any) -> st.SearchStrategy[Any]:
    if type(kind) is Schema:
        return st.tuples(*map(values, kind.fields))
    if type(kind) is Array:
        return st.none() | st.lists(values(kind.array_of), max_size=2)
    if isinstance(kind, String):
        return st.none() | st.text(max_size=10)
    return FLAT[kind]


def is_known(kind: Any) -> bool:
    """Return whether `values` knows all fields: tagged and compact ones (a few administrative requests) it does not."""
    if type(kind) is Schema:
        return all(map(is_known, kind.fields))
    return is_known(kind.array_of) if type(kind) is Array else isinstance(kind, String) or kind in FLAT


produced = partial(ProduceRequest_v7, transactional_id=None, required_acks=-1, timeout=1)
REQUESTS = [kind for kind in set(requests()) if is_known(kind.SCHEMA)]


@given(st.sampled_from(sorted(REQUESTS, key=str)).flatmap(lambda kind: st.tuples(st.just(kind), values(kind.SCHEMA))))
def test_a_request_is_encoded_as_its_schema_says(case: tuple[type[Struct], tuple[Any, ...]]) -> None:
    kind, fields = case
    assert fastpath.encode(kind(*fields)) == kind.SCHEMA.encode(fields)


@given(st.binary(max_size=50), st.lists(st.binary(max_size=50), min_size=1, max_size=3))
def test_a_large_record_in_a_request_is_encoded_as_its_bytes_are(other: bytes, each: list[bytes]) -> None:
    whole, parts = (
        produced(topics=[("topic", [(0, value), (1, other)]), ("second", [(2, value)])])
        for value in (b"".join(each), SendBuffers(each))
    )
    encoded = b"size" + (b"header" + fastpath.encode(parts))
    assert isinstance(encoded, SendBuffers)
    assert b"".join(encoded.each) == b"sizeheader" + fastpath.encode(whole)
    assert len(encoded) == len(b"sizeheader" + fastpath.encode(whole))


def test_most_kinds_of_requests_were_tried_and_one_with_a_value_too_few_is_refused() -> None:
    """A field that was forgotten would shift all others."""
    names = {kind.__name__ for kind in REQUESTS}
    assert len(names) > 80
    assert {f"ProduceRequest_v{version}" for version in range(8)} <= names
    with pytest.raises(ValueError, match="1 values for the fields"):
        fastpath.encode(produced(topics=[("topic", [(0,)])]))


async def test_a_transport_sends_parts_in_their_order_among_other_bytes() -> None:
    """More of them than the socket takes at once, so most wait in the transport."""
    parts = b"head" + SendBuffers([b"one", bytearray(b"two"), memoryview(b"three")])
    assert (len(parts), b"".join(parts.each)) == (15, b"headonetwothree")
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    fastpath.take_buffers(transport)
    sent = [b"%d" % number * 300_000 for number in range(10)]
    transport.write(sent[0])
    transport.write(SendBuffers([sent[1], memoryview(sent[2]), bytearray(sent[3])]))  # type: ignore[arg-type]
    transport.write(sent[4])
    transport.write(sent[5] + SendBuffers(sent[6:]))  # type: ignore[arg-type]
    wanted, found = b"".join(sent), bytearray()
    while len(found) < len(wanted):
        found += await loop.sock_recv(theirs, 1 << 20)
    assert found == wanted
    transport.close()
    theirs.close()


def test_a_transport_that_takes_parts_goes_when_it_is_let_go() -> None:
    """Without a look for garbage: TLS's has large buffers."""

    class Transport(asyncio.WriteTransport):
        """One that holds nothing."""

    transport = Transport()
    fastpath.take_buffers(transport)
    gone = weakref.ref(transport)
    gc.disable()
    try:
        del transport
        assert gone() is None
    finally:
        gc.enable()
