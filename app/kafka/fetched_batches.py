"""The record batches of a fetch, read as brokers read them: nothing that a broker took ends a fetch.

aiokafka decodes the names of headers as UTF-8, leaves compressed data to libraries that refuse what Java's pass over
(bytes behind the end, checksums that Kafka does not check, versions of Snappy's framing), and believes what a record
says of its own offset. What it cannot unpack is unpacked here (https://kafka.apache.org/documentation/#recordbatch).

It takes two microseconds to hand out a record, a good part of what a short document costs, and its CRC-32C eight times
as long as it must: with the fast path, `FetchedRecords` and the processor's instruction do it.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

import cramjam
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.util import decode_varint
from crc32c import crc32c

HEAD: Final = Struct(">q8xBI")
"""How a batch begins: base offset, length, leader epoch, version of the format, CRC-32C of all that follows."""
REST: Final = Struct(">hiqqqhii")
"""What follows: attributes, last offset delta, first and largest timestamp, producer's id, epoch and sequence, number
of records; then the records."""
LENGTH: Final = Struct(">i")
LENGTH_AT: Final = 8
LENGTH_END: Final = 12
"""What the length counts from."""
OLD_VERSIONS: Final = (0, 1)
"""Formats with other checksums, in other places: such logs were written before Kafka 0.11."""
CODEC: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
"""Attributes of a batch."""
IS_PLAIN_PYTHON: Final = DefaultRecordBatch.__module__ == default_records.__name__
"""Whether aiokafka has no compiled parts: it unpacks no faster then, and computes times that Kafka cannot hold."""


class UnpackedRecord(NamedTuple):
    """A record, as aiokafka has it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    """A byte of a name that is no UTF-8 is written as ``\\xe9``."""
    checksum: None = None


class FetchedBatches:
    """The batches of a fetch, of which the last may be cut off; replaces aiokafka's ``MemoryRecords``."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data)
        self._start = 0

    def size_in_bytes(self) -> int:
        """Return how much was fetched."""
        return len(self._view)

    def has_next(self) -> bool:
        """Return whether another whole batch was fetched."""
        left = len(self._view) - self._start
        return left >= LENGTH_END and left >= self._next_size()

    def next_batch(self, partition: TopicPartition | None = None, *, check: bool = False) -> Any:
        """Return the next batch; raises CorruptRecordException for none, and with ``check`` for one that is damaged."""
        size = self._next_size()
        data = self._view[self._start : self._start + size]
        self._start += size
        place = "a fetch" if partition is None else f"{partition.topic}[{partition.partition}]"
        if size < HEAD.size:
            raise CorruptRecordException(f"{place}: {size} bytes are no batch")
        offset, version, crc = HEAD.unpack_from(data)
        if version in OLD_VERSIONS:
            batch = LegacyRecordBatch(data, version)
            fits = not check or batch.validate_crc()
        else:
            batch = TolerantBatch(data)
            fits = not check or crc32c(data[HEAD.size :]) == crc
        if not fits:
            raise CorruptRecordException(
                f"offset {offset} of {place}: the batch fails its CRC, so it is not what was sent to the brokers"
            )
        return batch

    def _next_size(self) -> int:
        return LENGTH_END + int(LENGTH.unpack_from(self._view, self._start + LENGTH_AT)[0])


class TolerantBatch:
    """aiokafka's batch, with all records that the brokers see in it."""

    __slots__ = ("_batch", "_data")

    def __init__(self, data: memoryview) -> None:
        self._batch = DefaultRecordBatch(data)
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            records = [] if IS_PLAIN_PYTHON else list(self._batch)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - of aiokafka, or of any library that decompresses for it
            records = []
        if not records or not _are_placed([r.offset for r in records], self.base_offset, self.next_offset):
            records = unpack(self._data)
        return iter(records)


def packed_batches(value: Any) -> Any:
    """Return ``value``; a consumer with it as ``value_deserializer`` gets `FetchedRecords`, and takes whole fetches."""
    return value


class PackedBatch(NamedTuple):
    """A batch as it was fetched: how much it holds is known once a reader unpacks it."""

    first: int
    """The offset of its first record, or a lower one."""
    end: int
    """The offset after its last one, or a higher one."""
    position: int
    """Records below it are not wanted: a fetch begins with the batch that holds its position."""
    batch: Any

    def unpack(self) -> list[Any]:
        """Return the records that are wanted; to be called once."""
        records = list(self.batch)
        if records and records[0].offset < self.position:
            records = [record for record in records if record.offset >= self.position]
        return records


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """The records that one fetch brought of one partition."""

    tp: TopicPartition
    records: Sequence[Any]
    """In the order of their offsets, `SourceRecord` each or a `PackedBatch`; empty where only gaps were passed."""
    position: int
    """The offset after all that was passed, transaction markers and other gaps included."""
    generation: int
    """What the partition's start returned before these were fetched: what was fetched before a later start is of an
    earlier generation, and is not delivered."""


def unpacked(fetched: Iterable[Any], end: int) -> list[Any]:
    """Return the records below offset ``end`` that a fetch brought, packed or not; what is behind stays packed."""
    records: list[Any] = []
    for one in fetched:
        if not isinstance(one, PackedBatch):
            records.append(one)
        elif one.first < end:
            records += one.unpack()
    return records if not records or records[-1].offset < end else [one for one in records if one.offset < end]


class FetchedRecords(PartitionRecords):  # type: ignore[misc]  # untyped there
    """What a fetch brought of one partition, still packed: to unpack may take long, which an event loop must not."""

    next_fetch_offset: int

    def _unpack_records(self) -> Iterator[PackedBatch]:
        batches = self._records
        while batches.has_next():
            batch = batches.next_batch(self._tp, check=self._check_crcs)
            if not self._is_skipped(batch):
                position = self.next_fetch_offset
                yield PackedBatch(getattr(batch, "base_offset", position), batch.next_offset, position, batch)
            self.next_fetch_offset = batch.next_offset

    def _is_skipped(self, batch: Any) -> bool:
        """Return whether a batch holds no records for readers: those of a transaction that was aborted, or its end."""
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)


def read_as_brokers_do() -> None:
    """Let all consumers of this process read batches so from now on."""
    fetcher.MemoryRecords = FetchedBatches


def partition_records(tp: TopicPartition, records: FetchedBatches, *options: Any) -> PartitionRecords:
    """Return the records of a fetch as their consumer wants them; used in place of aiokafka's ``PartitionRecords``."""
    kind = FetchedRecords if packed_batches in options else PartitionRecords
    return kind(tp, records, *options)


def hand_out_packed_batches() -> None:
    """Let the consumers of this process that ask for it (`packed_batches`) unpack so what they fetch from now on."""
    read_as_brokers_do()
    fetcher.PartitionRecords = partition_records


def _are_placed(offsets: Sequence[int], first: int, end: int) -> bool:
    """Return whether the records of a batch have its offsets: each one, or some where a log was compacted."""
    if len(offsets) == end - first:
        return offsets == list(range(first, end))
    return first <= offsets[0] and offsets[-1] < end and all(a < b for a, b in pairwise(offsets))


def unpack(batch: memoryview) -> list[UnpackedRecord]:
    """Return the records of a batch, each at an offset of its own; raises CorruptRecordException for a damaged one."""
    offset, *_ = HEAD.unpack_from(batch)
    attributes, last, first_time, last_time, *_, count = REST.unpack_from(batch, HEAD.size)
    records = []
    try:
        data, at = _UNPACKING[attributes & CODEC](batch[HEAD.size + REST.size :]), 0
        for _ in range(count):
            _, at = decode_varint(data, at)  # its length
            delta, at = decode_varint(data, at + 1)  # after attributes without meaning
            number, at = decode_varint(data, at)
            key, at = _field(data, at)
            value, at = _field(data, at)
            names, at = decode_varint(data, at)
            headers = []
            for _ in range(names):
                name, at = _field(data, at)
                content, at = _field(data, at)
                headers.append(((name or b"").decode(errors="backslashreplace"), content))
            created = (first_time + delta + (1 << 63)) % (1 << 64) - (1 << 63)  # as Java adds two such numbers
            when, kind = (last_time, 1) if attributes & LOG_APPEND_TIME else (created, 0)
            records.append(UnpackedRecord(offset + number, when, kind, key, value, headers))
    except (ValueError, LookupError, zlib.error, cramjam.DecompressionError) as error:
        raise CorruptRecordException(f"offset {offset}: the batch cannot be unpacked: {error!r}") from error
    offsets, end = [record.offset for record in records], offset + last + 1
    if records and not _are_placed(offsets, offset, end):  # brokers count records, and read none of their offsets
        records = [record._replace(offset=offset + number) for number, record in enumerate(records)]
    return records


def _field(data: bytearray, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise ValueError(f"{size} bytes are announced, and {len(data) - at} are there")
    return bytes(data[at : at + size]), at + size


def _from_gzip(data: memoryview) -> bytearray:
    """Decompress all members; what follows the last one is nothing, as for Java."""
    unpacked, at = bytearray(), 0
    while at < len(data):
        member = zlib.decompressobj(wbits=31)
        try:
            while at < len(data) and not member.eof:
                step = data[at : at + 4096]  # what is behind a member in it is copied
                unpacked += member.decompress(step)
                at += len(step) - len(member.unused_data)
        except zlib.error:
            if not unpacked:
                raise
            break
    return unpacked


SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
SNAPPY_HEAD: Final = 16
"""Bytes of the magic number and two versions."""
SNAPPY_AGAIN: Final = LENGTH.unpack_from(SNAPPY_MAGIC)[0]
"""In the place of a block's size: another stream follows."""


def _from_snappy(data: memoryview) -> bytearray:
    """Decompress the blocks of xerial's framing, of any version, or the one block that there is without it."""
    if not data.tobytes().startswith(SNAPPY_MAGIC):
        return bytearray(cramjam.snappy.decompress_raw(data))
    unpacked, at = bytearray(), SNAPPY_HEAD
    while at + LENGTH.size <= len(data):
        (size,) = LENGTH.unpack_from(data, at)
        if size == SNAPPY_AGAIN:
            at += SNAPPY_HEAD
            continue
        at += LENGTH.size
        unpacked += cramjam.snappy.decompress_raw(data[at : at + size])
        at += size
    return unpacked


LZ4_FLAGS_AT: Final = 4
LZ4_HEAD: Final = 7
LZ4_SIZE: Final = Struct("<I")
LZ4_PLAIN: Final = 1 << 31
"""Flag of the size of a block that is not compressed."""
LZ4_BLOCK_CHECKSUMS: Final = 0x10
LZ4_CONTENT_SIZE: Final = 0x08


def _from_lz4(data: memoryview) -> bytearray:
    """Decompress the blocks of the first frame, each for itself: brokers take no others, and no word of its end."""
    flags, sizes = data[LZ4_FLAGS_AT : LZ4_FLAGS_AT + 2]
    largest = 1 << 8 + 2 * (sizes >> 4)
    unpacked, at = bytearray(), LZ4_HEAD + (8 if flags & LZ4_CONTENT_SIZE else 0)
    while at + LZ4_SIZE.size <= len(data):
        (size,) = LZ4_SIZE.unpack_from(data, at)
        if not size:
            break
        at += LZ4_SIZE.size
        block = data[at : at + (size & ~LZ4_PLAIN)]
        unpacked += block if size & LZ4_PLAIN else cramjam.lz4.decompress_block(block, output_len=largest)
        at += len(block) + (4 if flags & LZ4_BLOCK_CHECKSUMS else 0)
    return unpacked


_UNPACKING: Final[Mapping[int, Callable[[memoryview], bytearray]]] = {
    0: bytearray,
    1: _from_gzip,
    2: _from_snappy,
    3: _from_lz4,
    4: lambda data: bytearray(cramjam.zstd.decompress(data)),
}
