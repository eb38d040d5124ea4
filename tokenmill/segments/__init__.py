"""The segment store: format, writer, recovery, reader (`docs/format.md`).

A store is a copy of the token topics on one disk, which trainers read as plain files. One `PartitionWriter` per
partition appends accepted blocks; a block is visible when its commit record is on disk after its data. Any number of
`PartitionReader` follow, in any process. `EraWriter` and `EraReader` are the same for the stream's eras.
"""

from tokenmill.segments.era_reader import EraReader
from tokenmill.segments.era_writer import EraWriter
from tokenmill.segments.lock import StoreLock
from tokenmill.segments.maps import MapWatch
from tokenmill.segments.opening import open_eras, open_partition
from tokenmill.segments.reader import OnDamage, PartitionReader
from tokenmill.segments.start import Start
from tokenmill.segments.store import Store, partitions_in, read_stream, streams_in
from tokenmill.segments.stream import StreamInfo
from tokenmill.segments.views import DocumentPiece
from tokenmill.segments.writer import PartitionWriter

__all__ = [
    "DocumentPiece",
    "EraReader",
    "EraWriter",
    "MapWatch",
    "OnDamage",
    "PartitionReader",
    "PartitionWriter",
    "Start",
    "Store",
    "StoreLock",
    "StreamInfo",
    "open_eras",
    "open_partition",
    "partitions_in",
    "read_stream",
    "streams_in",
]
