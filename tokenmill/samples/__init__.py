"""The one sequence of samples of a training run: arithmetic, a run's state, and which samples a store holds."""

from tokenmill.samples.document_index import DocumentIndex, packing_in
from tokenmill.samples.document_order import (
    Stratum,
    bucket_order,
    describe_strata,
    era_order,
    strata_of,
    stratified_order,
)
from tokenmill.samples.era_lookup import UNPINNED, UsedContent
from tokenmill.samples.mixing import Change, Course, Point, Schedule
from tokenmill.samples.position import Content, Position, SequenceId, StepRange
from tokenmill.samples.sequence import EraOrder, Numbers, Ranks, Samples, SegmentOrder, count_views, join
from tokenmill.samples.tracing import (
    MixtureTracer,
    Source,
    TracedRecord,
    TracedSample,
    TracedView,
    Tracer,
    Use,
    is_mixture,
    part_of,
    places_of,
    sources_of,
)
from tokenmill.samples.trainable import TrainableSamples, first_needed, read_any_state, read_state

__all__ = [
    "UNPINNED",
    "Change",
    "Content",
    "Course",
    "DocumentIndex",
    "EraOrder",
    "MixtureTracer",
    "Numbers",
    "Point",
    "Position",
    "Ranks",
    "Samples",
    "Schedule",
    "SegmentOrder",
    "SequenceId",
    "Source",
    "StepRange",
    "Stratum",
    "TracedRecord",
    "TracedSample",
    "TracedView",
    "Tracer",
    "TrainableSamples",
    "Use",
    "UsedContent",
    "bucket_order",
    "count_views",
    "describe_strata",
    "era_order",
    "first_needed",
    "is_mixture",
    "join",
    "packing_in",
    "part_of",
    "places_of",
    "read_any_state",
    "read_state",
    "sources_of",
    "strata_of",
    "stratified_order",
]
