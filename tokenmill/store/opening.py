"""Opening what a store, or any copy of one, holds of a stream, for reading."""

from tokenmill.store.eras import EraReader
from tokenmill.store.layout import StorePath, partition_directory, store_directory, stream_directory
from tokenmill.store.reader import OnDamage, PartitionReader
from tokenmill.store.store import read_stream


def open_partition(
    store: StorePath, stream: str, partition: int, *, check: bool = True, on_damage: OnDamage = "refuse"
) -> PartitionReader:
    """Open one partition of a stream in a store, or in any copy of one, for reading.

    Each block is held against its CRC when it is first read in this process, and refused if it differs; with
    ``on_damage="skip"``, `PartitionReader.gather` leaves it out. With ``check=False``, blocks are read as they are. A
    partition that the store holds nothing of yet has no blocks; `PartitionReader.refresh` sees them come.

    Raises:
        StoreError: the store holds no such stream.
        DamagedError: a commit log or manifest was changed, or belongs to another stream.

    """
    directory = partition_directory(store_directory(store), stream, partition)
    return PartitionReader(directory, read_stream(store, stream), partition, check=check, on_damage=on_damage)


def open_eras(store: StorePath, stream: str) -> EraReader:
    """Open the eras of a stream in a store, or in any copy of one, for reading.

    Raises:
        StoreError: the store holds no such stream.
        DamagedError: what was committed was changed or is missing.

    """
    return EraReader(stream_directory(store_directory(store), stream), read_stream(store, stream))
