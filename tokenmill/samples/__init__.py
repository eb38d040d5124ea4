"""The one sequence of samples of a training run: arithmetic, a run's state, and which samples a store holds."""

from tokenmill.samples.content import UNPINNED, UsedContent
from tokenmill.samples.document_index import DocumentIndex, DocumentPieces, packing_of
from tokenmill.samples.needed import first_needed, read_state
from tokenmill.samples.position import Content, Position, SequenceId, StepRange
from tokenmill.samples.sequence import EraOrder, Numbers, Ranks, Samples, count_views, join
from tokenmill.samples.source import Source, places_of, sources_of
from tokenmill.samples.tracing import TracedRecord, TracedSample, TracedView, Tracer, Use
from tokenmill.samples.trainable import TrainableSamples

__all__ = [
    "UNPINNED",
    "Content",
    "DocumentIndex",
    "DocumentPieces",
    "EraOrder",
    "Numbers",
    "Position",
    "Ranks",
    "Samples",
    "SequenceId",
    "Source",
    "StepRange",
    "TracedRecord",
    "TracedSample",
    "TracedView",
    "Tracer",
    "TrainableSamples",
    "Use",
    "UsedContent",
    "count_views",
    "first_needed",
    "join",
    "packing_of",
    "places_of",
    "read_state",
    "sources_of",
]
