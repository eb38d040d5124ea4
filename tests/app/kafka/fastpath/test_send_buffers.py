"""What is sent is what aiokafka would send, byte for byte: batches of one large record, and every request."""

import asyncio
import gc
import inspect
import pkgutil
import socket
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import aiokafka.protocol
import pytest
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.struct import Struct
from aiokafka.protocol.types import Array, Boolean, Bytes, Int8, Int16, Int32, Int64, Schema, String, UInt32
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.kafka.fastpath import LARGE_BYTES, BatchBuilder, SendBuffers, _LargeRecordBatch, encode, take_buffers

(THEIRS,) = BatchBuilder.__bases__
GZIP = 1
LARGE = st.integers(0, 300).map(lambda more: bytes(range(256)) * (LARGE_BYTES // 256) + b"%d" % more * more)
RECORDS = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 2**62),
        "key": st.none() | st.binary(max_size=100),
        "value": LARGE,
        "headers": st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=200)), max_size=3),
    }
)
STATES = st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(0, 2**31 - 1))
INTEGERS = {Int8: 8, Int16: 16, Int32: 32, Int64: 64}
FLAT: dict[Any, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for kind, bits in INTEGERS.items()},
    UInt32: st.integers(0, 2**32 - 1),
    Boolean: st.booleans(),
    Bytes: st.none() | st.binary(max_size=300),
}


@given(RECORDS, STATES, st.fixed_dictionaries({"is_transactional": st.booleans()}))
def test_a_large_record_is_the_batch_that_aiokafka_makes_of_it(
    record: dict[str, Any], state: tuple[int, int, int], options: dict[str, bool]
) -> None:
    ours, theirs = (kind(16384, 0, **options) for kind in (BatchBuilder, THEIRS))
    found, expected = ours.append(**record), theirs.append(**record)
    assert (found.offset, found.timestamp, found.size) == (expected.offset, expected.timestamp, expected.size)
    assert isinstance(ours._builder, _LargeRecordBatch)
    for builder in (ours, theirs):
        assert builder.append(timestamp=None, key=None, value=b"the next one") is None
        builder._set_producer_state(*state)
    assert ours.size() == theirs.size()
    assert b"".join(ours._build().each) == bytes(theirs._build())
    assert len(ours._build()) == len(theirs._build())


@pytest.mark.parametrize("compression", [0, GZIP])
def test_small_records_and_compressed_ones_are_batched_by_aiokafka(
    compression: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a large record that stands first, and is sent as it is, is a batch of its own."""
    monkeypatch.setattr("gzip.time.time", lambda: 1.0)  # it is in what gzip makes
    ours, theirs = (kind(3 * LARGE_BYTES, compression, is_transactional=False) for kind in (BatchBuilder, THEIRS))
    for value in (b"x" * (1 if compression == 0 else LARGE_BYTES), None, b"y" * LARGE_BYTES, b"z" * 2 * LARGE_BYTES):
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


REQUESTS = [kind for kind in set(requests()) if is_known(kind.SCHEMA)]


@given(st.sampled_from(sorted(REQUESTS, key=str)).flatmap(lambda kind: st.tuples(st.just(kind), values(kind.SCHEMA))))
def test_a_request_is_encoded_as_its_schema_says(case: tuple[type[Struct], tuple[Any, ...]]) -> None:
    kind, fields = case
    assert encode(kind(*fields)) == kind.SCHEMA.encode(fields)


@given(st.binary(max_size=50), st.lists(st.binary(max_size=50), min_size=1, max_size=3))
def test_a_large_record_in_a_request_is_encoded_as_its_bytes_are(other: bytes, each: list[bytes]) -> None:
    topics = [("topic", [(0, b"".join(each)), (1, other)]), ("second", [(2, b"".join(each))])]
    whole, parts = (
        ProduceRequest_v7(transactional_id=None, required_acks=-1, timeout=1, topics=topics),
        ProduceRequest_v7(
            transactional_id=None,
            required_acks=-1,
            timeout=1,
            topics=[("topic", [(0, SendBuffers(each)), (1, other)]), ("second", [(2, SendBuffers(each))])],
        ),
    )
    encoded = b"size" + (b"header" + encode(parts))
    assert isinstance(encoded, SendBuffers)
    assert b"".join(encoded.each) == b"sizeheader" + encode(whole)
    assert len(encoded) == len(b"sizeheader" + encode(whole))


def test_most_kinds_of_requests_were_tried() -> None:
    names = {kind.__name__ for kind in REQUESTS}
    assert len(names) > 80
    assert {f"ProduceRequest_v{version}" for version in range(8)} <= names


def test_a_request_with_a_value_too_few_is_refused() -> None:
    """A field that was forgotten would shift all others."""
    request = ProduceRequest_v7(transactional_id=None, required_acks=-1, timeout=1, topics=[("topic", [(0,)])])
    with pytest.raises(ValueError, match="1 values for the fields"):
        encode(request)


def test_parts_are_as_long_as_they_are_together() -> None:
    parts = b"head" + SendBuffers([b"one", bytearray(b"two"), memoryview(b"three")])
    assert (len(parts), b"".join(parts.each)) == (15, b"headonetwothree")


async def test_a_transport_sends_parts_in_their_order_among_other_bytes() -> None:
    """More of them than the socket takes at once, so most wait in the transport."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    take_buffers(transport)
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
    take_buffers(transport)
    gone = weakref.ref(transport)
    gc.disable()
    try:
        del transport
        assert gone() is None
    finally:
        gc.enable()
