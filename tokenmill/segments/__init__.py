"""The segment store: format, writer, recovery, reader (`docs/format.md`).

A store is a copy of the token topics on one disk, which trainers read as plain files. One `PartitionWriter` per
partition appends accepted blocks; a block is visible when its commit record is on disk after its data. Any number of
`PartitionReader` follow, in any process.
"""

from tokenmill.segments.reader import DocumentPiece, OnDamage, PartitionReader, open_partition
from tokenmill.segments.start import Start
from tokenmill.segments.store import Store, partitions_in, read_stream, streams_in
from tokenmill.segments.stream import StreamInfo
from tokenmill.segments.writer import PartitionWriter

__all__ = [
    "DocumentPiece",
    "OnDamage",
    "PartitionReader",
    "PartitionWriter",
    "Start",
    "Store",
    "StreamInfo",
    "open_partition",
    "partitions_in",
    "read_stream",
    "streams_in",
]
