"""What a fetch brought for one partition, whoever fetched it."""

from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from tokenmill.records import SourceRecord


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one partition that came together."""

    tp: TopicPartition
    records: Sequence[SourceRecord]
    """In the order of their offsets; empty where the fetch only passed offsets without records."""
    position: int
    """The offset after all that was passed, transaction markers and other gaps included."""
    epoch: int
    """What the partition's start returned before these were fetched."""
