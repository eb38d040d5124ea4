"""Looking at what there is: a stream, a segment, a message, or one block and the Kafka records that it came from."""

from .block_trace import BlockTrace, RecordText, TracedPiece, trace_block
from .reports import (
    ChainReport,
    SegmentReport,
    StreamReport,
    inspect_message,
    inspect_partition,
    inspect_segment,
    inspect_stream,
)

__all__ = [
    "BlockTrace",
    "ChainReport",
    "RecordText",
    "SegmentReport",
    "StreamReport",
    "TracedPiece",
    "inspect_message",
    "inspect_partition",
    "inspect_segment",
    "inspect_stream",
    "trace_block",
]
