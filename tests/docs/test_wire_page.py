"""A reader of token messages written from docs/format.md alone, with another Kafka client, and what it must see.

`read_header` uses struct, zlib and json, `rolled` the library of the hash; the client is confluent-kafka. Nothing of
TokenMill is used for reading.
"""

import json
import struct
import zlib
from typing import Any, NamedTuple

import confluent_kafka
import numpy as np
import xxhash

from tests.conftest import TopicFactory
from tests.mills import PARTITION, RECIPE, flush, make_source, named, text, write
from tokenmill.app.kafka.clients import producer
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

FIXED = struct.Struct("<4s16sQI44s16s16sIII")
CURSOR = struct.Struct("<qqQqIq")
RECORDS = [named(0, "a", "hello, world"), text(2, "naïve"), flush(3), named(5, 7, "x" * 23), text(6, "left over")]


class Header(NamedTuple):
    fingerprint: bytes
    first: int
    blocks: int
    cursor: tuple[int, ...]
    before: bytes
    after: bytes
    totals: dict[str, Any]
    entries: bytes
    open_tokens: bytes


def read_header(data: bytes) -> Header:
    magic, fingerprint, first, count, cursor, before, after, totals, entries, opened = FIXED.unpack_from(data)
    assert magic == b"TMm1"
    assert zlib.crc32(data[:-4]) == struct.unpack("<I", data[-4:])[0]
    at = FIXED.size
    parts = []
    for size in (totals, entries, opened):
        parts.append(data[at : at + size])
        at += size
    assert at == len(data) - 4
    place = CURSOR.unpack(cursor)
    return Header(fingerprint, first, count, place, before, after, json.loads(parts[0]), parts[1], parts[2])


def cut_entries(data: bytes) -> list[bytes]:
    found = []
    while data:
        pieces, metas = struct.unpack_from("<II", data)
        size = 8 + 24 * pieces + metas
        found.append(data[:size])
        data = data[size:]
    return found


def rolled(header: Header, value: bytes) -> bytes:
    chain = header.before
    size = len(value) // header.blocks if header.blocks else 0
    for number, entry in enumerate(cut_entries(header.entries) if header.blocks else []):
        chain = xxhash.xxh3_128_digest(chain + value[number * size : (number + 1) * size] + entry)
    return chain


async def publish(broker: Broker, topic: str, messages: list[Message]) -> None:
    async with producer(Settings(bootstrap_servers=broker.bootstrap_servers)) as client:
        for message in messages:
            headers = [(HEADER_NAME, encode_header(message))]
            await client.send_and_wait(topic, bytes(message.tokens), partition=PARTITION, headers=headers)


def read_with_confluent(broker: Broker, topic: str, count: int) -> list[confluent_kafka.Message]:
    client = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "somebody-else"})
    client.assign([confluent_kafka.TopicPartition(topic, PARTITION, 0)])
    found: list[confluent_kafka.Message] = []
    while len(found) < count:
        found += client.consume(count - len(found), timeout=10)
    client.close()
    return found


def header_of(message: confluent_kafka.Message) -> bytes:
    found = dict(message.headers() or [])["tokenmill"]
    assert isinstance(found, bytes)
    return found


async def test_another_client_reads_all_that_the_page_says(broker: Broker, topic: TopicFactory) -> None:
    source = make_source(RECIPE)
    messages = write(source, RECIPE, RECORDS, (2,), message_bytes=250, carries=(False, False, True))
    name = topic(PARTITION + 1)
    await publish(broker, name, messages)

    found = read_with_confluent(broker, name, len(messages))

    blocks = source.blocks(RECIPE, RECORDS)
    tokens: list[Any] = []
    chain = xxhash.xxh3_128_digest(b"tokenmill chain 1" + RECIPE.fingerprint + struct.pack("<I", PARTITION))
    for message in found:
        header = read_header(header_of(message))
        value = message.value() or b""
        assert header.fingerprint == RECIPE.fingerprint
        assert (header.first, header.before) == (len(tokens), chain)
        assert rolled(header, value) == header.after
        chain = header.after
        tokens += list(np.frombuffer(value, "<u1").reshape(header.blocks, RECIPE.block_tokens))
        if header.blocks:
            last = blocks[len(tokens) - 1]
            assert header.totals == last.totals.to_dict()
            assert header.cursor[:3] == (last.cursor.next_offset, last.cursor.taken, len(tokens))
            assert [*cut_entries(header.entries)] == [b.entry for b in blocks[header.first : len(tokens)]]
    assert [row.tobytes() for row in tokens] == [block.tokens for block in blocks]
    assert_tells_the_open_block(found[-1], len(blocks))


def assert_tells_the_open_block(carry: confluent_kafka.Message, blocks: int) -> None:
    """Check that a carry behind all records, without blocks in its value, holds the open block's tokens and pieces."""
    header = read_header(header_of(carry))
    full = len("left over\0") // RECIPE.block_tokens * RECIPE.block_tokens
    assert (header.blocks, carry.value() or b"") == (0, b"")
    assert header.open_tokens == b"left over\0"[full:]
    assert header.cursor[:3] == (RECORDS[-1].offset + 1, 0, blocks)
    (entry,) = cut_entries(header.entries)
    assert struct.unpack_from("<IIqq", entry, 8) == (0, 0, RECORDS[-1].offset, full)
