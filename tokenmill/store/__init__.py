"""The segment store: format, writer, recovery, reader (`docs/format.md`).

A store is a copy of the token topics on one disk, which trainers read as plain files: one `PartitionWriter` per
partition, and any number of `PartitionReader`; `EraWriter` and `EraReader` are the same for the stream's eras.
"""

from tokenmill.store.eras import EraReader, EraWriter, open_eras
from tokenmill.store.layout import StoreLock
from tokenmill.store.maps import MapWatch
from tokenmill.store.reader import OnDamage, PartitionReader, open_partition
from tokenmill.store.segment import DocumentPiece, Pieces, join_pieces
from tokenmill.store.store import (
    Start,
    Store,
    StreamInfo,
    partitions_in,
    read_stream,
    read_tokenizer,
    streams_in,
    tokenizer_path,
)
from tokenmill.store.writer import PartitionWriter

__all__ = [
    "DocumentPiece",
    "EraReader",
    "EraWriter",
    "MapWatch",
    "OnDamage",
    "PartitionReader",
    "PartitionWriter",
    "Pieces",
    "Start",
    "Store",
    "StoreLock",
    "StreamInfo",
    "join_pieces",
    "open_eras",
    "open_partition",
    "partitions_in",
    "read_stream",
    "read_tokenizer",
    "streams_in",
    "tokenizer_path",
]
