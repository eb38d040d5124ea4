"""What a fetch brought: unpacked a batch at a time, and its checksums computed by the processor's own instruction.

aiokafka takes two microseconds to hand out a record, which is a good part of what a short document costs: it copies the
record's fields into an object of its own, and passes each through two generators. And its CRC-32C, which covers every
byte that is fetched, takes eight times as long as it must. What it checks, skips and raises is kept.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from ..cluster import Attributes, Parts
from ..fetched_batches import FetchedBatches, read_as_brokers_do
from . import whole_batches

RELIED_ON: Final[Parts] = {
    (PartitionRecords, "__init__"): [
        *("self", "tp", "records", "aborted_transactions", "fetch_offset", "key_deserializer", "value_deserializer"),
        *("check_crcs", "isolation_level"),
    ],
    (PartitionRecords, "__next__"): ["self"],
    (PartitionRecords, "_unpack_records"): ["self"],
    (PartitionRecords, "_consume_aborted_up_to"): ["self", "batch_offset"],
    (PartitionRecords, "_contains_abort_marker"): ["self", "next_batch"],
    (fetcher.FetchResult, "getone"): ["self"],
    (fetcher.FetchResult, "getall"): ["self", "max_records"],
    (fetcher.FetchResult, "_update_position"): ["self"],
}
"""What `FetchedRecords` overrides and calls, and who takes records from it."""
ATTRIBUTES: Final[Attributes] = {
    PartitionRecords: [
        *("_tp", "_records", "_aborted_producers", "_check_crcs", "_isolation_level", "next_fetch_offset"),
        "_records_iterator",
    ],
    DefaultRecordBatch: ["base_offset", "is_control_batch", "is_transactional", "next_offset", "producer_id"],
    LegacyRecordBatch: ["is_control_batch", "next_offset", "producer_id", "validate_crc"],
}


class FetchedRecords(PartitionRecords):  # type: ignore[misc]  # untyped there
    """The records of one partition in a fetch, as they are in their batches: without topic and partition.

    For consumers that ask for it (`whole_batches`), which take all of them, or one at a time. Who takes some of them at
    once (``max_records``) continues with the next one, but its position is the end of a batch.
    """

    def __iter__(self) -> Iterator[Any]:
        """Return what gives out the records; when it is done, the position is behind the last batch."""
        records: Iterator[Any] = self._records_iterator
        return records

    def __next__(self) -> Any:
        """Return the next record; the position is behind it."""
        record = next(self._records_iterator)
        self.next_fetch_offset = record.offset + 1
        return record

    def _unpack_records(self) -> Iterator[Any]:
        return chain.from_iterable(self._unpack_batches())

    def _unpack_batches(self) -> Iterator[list[Any]]:
        """Yield the records of each batch that are wanted.

        Raises:
            CorruptRecordException: a batch is not what the producer sent.

        """
        batches = self._records
        while batches.has_next():
            batch = batches.next_batch(self._tp, check=self._check_crcs)
            if not self._is_skipped(batch):
                wanted = self.next_fetch_offset
                records = list(batch)
                if records and records[0].offset < wanted:  # a fetch begins with the batch that holds the position
                    records = [record for record in records if record.offset >= wanted]
                yield records
            self.next_fetch_offset = batch.next_offset

    def _is_skipped(self, batch: Any) -> bool:
        """Return whether a batch holds no records for readers: those of a transaction that was aborted, or its end."""
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        control: bool = batch.is_control_batch
        return control


def partition_records(tp: TopicPartition, records: FetchedBatches, *options: Any) -> PartitionRecords:
    """Return the records of a fetch as their consumer wants them; used in place of aiokafka's ``PartitionRecords``.

    The parameters are those of aiokafka's class. Only who asked for whole batches sees our records; all other consumers
    of the process get aiokafka's, with all that these promise.
    """
    if whole_batches in options:
        return FetchedRecords(tp, records, *options)
    return PartitionRecords(tp, records, *options)


def unpack_whole_batches() -> None:
    """Let the consumers of this process that ask for it (`whole_batches`) unpack so what they fetch from now on."""
    read_as_brokers_do()
    fetcher.PartitionRecords = partition_records
