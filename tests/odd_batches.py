"""Record batches as no client of ours makes them, and as any client may: brokers take all of them."""

import asyncio
import gzip
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any, Final

import cramjam
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.codec import lz4_encode, snappy_encode, zstd_encode
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import encode_varint
from crc32c import crc32c

from tokenmill.app.kafka.clients import producer
from tokenmill.app.settings import Settings

Header = tuple[bytes, bytes | None]
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
NOW: Final = 1_700_000_000_000


def varint(number: int) -> bytes:
    data = bytearray()
    encode_varint(number, data.append)
    return bytes(data)


def field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(
    number: int, value: bytes | None, *, key: bytes | None = None, headers: Sequence[Header] = (), later: int = 0
) -> bytes:
    """Return a record: the one at ``number`` of its batch, as it says itself, ``later`` than the batch."""
    named = b"".join(field(name) + field(content) for name, content in headers)
    body = b"\0" + varint(later) + varint(number) + field(key) + field(value) + varint(len(headers)) + named
    return varint(len(body)) + body


def batch(
    records: Sequence[bytes], codec: int = 0, packed: Callable[[bytes], bytes] = bytes, *, first_time: int = NOW
) -> bytes:
    count = len(records)
    body = pack(">hiqqqhii", codec, count - 1, first_time, first_time, -1, -1, -1, count) + packed(b"".join(records))
    return pack(">qiibI", 0, 4 + 1 + 4 + len(body), -1, 2, crc32c(body)) + body


def _lz4_with_size(data: bytes) -> bytes:
    whole = bytes(cramjam.lz4.compress_block(data, store_size=False))
    from xxhash import xxh32_intdigest  # noqa: PLC0415

    described = bytes([0x6C, 0x40]) + pack("<Q", 1)
    head = bytes.fromhex("04224d18") + described + bytes([xxh32_intdigest(described) >> 8 & 0xFF])
    return head + pack("<I", len(whole)) + whole + bytes(4) + b"none"


GOOD: Final = b"A good document. "
ODD: Final[dict[str, bytes]] = {
    "a name of a header that is no UTF-8": batch([record(0, GOOD, headers=[(b"caf\xe9", b"1"), (b"\xff", None)])]),
    "the same, packed": batch([record(0, GOOD, headers=[(b"caf\xe9", b"1")])], GZIP, gzip.compress),
    "empty names, twice, null values": batch([record(0, GOOD, headers=[(b"", None), (b"", b""), (b"\0", b"\xff")])]),
    "100,000 headers": batch([record(0, GOOD, headers=[(b"n", b"v")] * 100_000)]),
    "headers of a million bytes": batch([record(0, GOOD, headers=[(b"n" * 500_000, b"v" * 500_000)])]),
    "a key of a million bytes": batch([record(0, GOOD, key=b"\xff" * 1_000_000)]),
    "no value, and a name that is no UTF-8": batch([record(0, None, headers=[(b"tokenmill\xff", b"flush")])]),
    "a time before 1970": batch([record(0, GOOD)], first_time=-5),
    "a time that overflows": batch([record(0, GOOD, later=1 << 62)], first_time=(1 << 62) + (1 << 61)),
    "a sum of times that overflows": batch([record(0, GOOD, later=NOW - (1 << 63))], first_time=-(1 << 63)),
    "offsets ahead": batch([record(0, GOOD), record(7, GOOD)]),
    "offsets behind": batch([record(-3, GOOD), record(-9, GOOD)]),
    "the same offset twice": batch([record(0, GOOD), record(0, GOOD), record(2, GOOD)]),
    "bytes behind gzip": batch([record(0, GOOD)], GZIP, lambda data: gzip.compress(data) + b"garbage"),
    "gzip in two members": batch([record(0, GOOD)], GZIP, lambda d: gzip.compress(d[:5]) + gzip.compress(d[5:])),
    "each byte a member of gzip, and a name that is no UTF-8": batch(
        [record(0, GOOD, headers=[(b"caf\xe9", bytes(20_000))])],
        *(GZIP, lambda data: b"".join(gzip.compress(bytes([byte]), 1) for byte in data)),
    ),
    "bytes behind snappy": batch([record(0, GOOD)], SNAPPY, lambda data: snappy_encode(data) + b"gar"),
    "snappy twice": batch([record(0, GOOD)], SNAPPY, lambda d: snappy_encode(d[:5]) + snappy_encode(d[5:])),
    "another version of snappy": batch(
        [record(0, GOOD)], SNAPPY, lambda data: snappy_encode(data)[:8] + pack(">ii", 3, 1) + snappy_encode(data)[16:]
    ),
    "snappy without a frame": batch([record(0, GOOD)], SNAPPY, lambda d: snappy_encode(d, xerial_compatible=False)),
    "bytes behind lz4": batch([record(0, GOOD)], LZ4, lambda data: lz4_encode(data) + b"garbage"),
    "lz4 with a wrong size and checksum": batch([record(0, GOOD)], LZ4, _lz4_with_size),
    "zstd in two frames": batch([record(0, GOOD)], ZSTD, lambda data: zstd_encode(data[:5]) + zstd_encode(data[5:])),
}
"""What is odd → a batch of `GOOD` values, or of a null one, that a broker takes."""


async def send_batch(settings: Settings, topic: str, data: bytes, partition: int = 0) -> int:
    async with producer(settings) as client:
        return await send_through(client, topic, data, partition)


async def send_through(client: AIOKafkaProducer, topic: str, data: bytes, partition: int = 0) -> int:
    """Send a batch as it is through a client that runs; return the offset that its first record got."""
    await client.partitions_for(topic)
    node = client.client.cluster.leader_for_partition(TopicPartition(topic, partition))
    request: Any = ProduceRequest(
        transactional_id=None, required_acks=-1, timeout=30_000, topics=[(topic, [(partition, data)])]
    )
    answer = await client.client.send(node, request)
    ((_, ((_, error, offset, *_),)),) = answer.topics
    assert error == 0, f"the broker refuses the batch with error {error}"
    return int(offset)


def send(settings: Settings, topic: str, data: bytes, partition: int = 0) -> int:
    return asyncio.run(send_batch(settings, topic, data, partition))
