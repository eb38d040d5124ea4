"""Looking at what there is: a stream, a segment, a message, or one block and the Kafka records that it came from."""

from .blocks import BlockTrace, RecordText, TracedPiece, trace_block
from .messages import inspect_message
from .segment_files import SegmentReport, inspect_partition, inspect_segment
from .streams import ChainReport, StreamReport, inspect_stream

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
