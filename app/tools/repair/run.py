"""A whole repair: description, then partition by partition."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from aiokafka import TopicPartition

from tokenmill.errors import InputError
from tokenmill.store import StreamInfo, partitions_in, read_stream
from tokenmill.store.donor import Donor, StoreDonor
from tokenmill.store.examination import examine
from tokenmill.store.layout import partition_directory
from tokenmill.store.repairing import Repaired, repair_partition
from tokenmill.store.start import read_start

from ...kafka.settled_streams import settled_stream
from ...settings import Settings
from .description import described, described_in, mend_description
from .result import PartitionRepair
from .topic_donor import TopicDonor


def repair_store(
    settings: Settings,
    stream: str,
    partitions: Sequence[int] = (),
    *,
    donor: Path | None = None,
    progress: Callable[[str, int, Repaired], None] = lambda *_: None,
) -> tuple[list[PartitionRepair], list[str]]:
    """Rebuild what is damaged or missing of a stream in the settings' store; return what, and which descriptions.

    All partitions of which the store has a directory, or those named. Blocks that the files themselves do not hold come
    from the token topic, or from the store ``donor``; then no broker is needed. ``progress`` hears of each segment.

    Raises:
        LockedError: a segment worker writes to a partition.
        DifferenceError: what gives the blocks holds another history.
        DamagedError: nothing tells where a partition begins.
        FingerprintError, StoreError, TopicError, BrokerError: store, donor or topics are not those of the stream.

    """
    store = settings.store
    if donor is not None:
        info, mended = mend_description(store, stream, lambda: described_in(donor, stream))
        donors: Callable[[int], Donor] = lambda partition: StoreDonor(donor, info, partition)  # noqa: E731
    else:
        settled = asyncio.run(settled_stream(settings, stream))
        info, mended = mend_description(store, stream, lambda: described(settled))
        recipe, topic = settled.genesis.recipe, settled.stream.tokens_topic
        donors = lambda partition: TopicDonor(settings, recipe, TopicPartition(topic, partition))  # noqa: E731
    repairs = []
    for partition in _chosen(store, stream, partitions):
        directory = partition_directory(store, stream, partition)
        segments = []
        for repaired in repair_partition(directory, info, partition, donors(partition)):
            progress(stream, partition, repaired)
            segments.append(repaired)
        repairs.append(PartitionRepair(stream, partition, segments))
    return repairs, mended


def examine_store(store: Path, stream: str, partitions: Sequence[int] = ()) -> list[PartitionRepair]:
    """Return what is damaged, and change nothing; needs no broker, and reads every byte.

    Raises:
        StoreError: the store holds no such stream.
        DamagedError: the stream's description, or where a partition begins, is damaged.

    """
    info = read_stream(store, stream)
    return [
        PartitionRepair(stream, partition, list(_examined(store, info, partition)))
        for partition in _chosen(store, stream, partitions)
    ]


def _examined(store: Path, info: StreamInfo, partition: int) -> Iterator[Repaired]:
    directory = partition_directory(store, info.name, partition)
    for damage in examine(directory, info, partition, read_start(directory, info, partition)):
        yield Repaired(damage.first, damage.what, 0, 0, (), ())


def _chosen(store: Path, stream: str, partitions: Iterable[int]) -> list[int]:
    there = partitions_in(store, stream)
    chosen = sorted(set(partitions)) or there
    for partition in chosen:
        if partition not in there:
            raise InputError(
                f"{store} holds nothing of partition {partition} of {stream} (partitions there: {there}): the segment "
                "worker begins it when it runs"
            )
    return chosen
