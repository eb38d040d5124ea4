"""Looking at what there is: a stream, a segment, a message, or one block and the Kafka records that it came from."""

from .reports import (
    ChainReport,
    SegmentReport,
    StreamReport,
    inspect_message,
    inspect_segments,
    inspect_stream,
)
from .tracing import BlockTrace, RecordText, TracedPiece, trace_block

__all__ = [
    "BlockTrace",
    "ChainReport",
    "RecordText",
    "SegmentReport",
    "StreamReport",
    "TracedPiece",
    "inspect_message",
    "inspect_segments",
    "inspect_stream",
    "trace_block",
]
