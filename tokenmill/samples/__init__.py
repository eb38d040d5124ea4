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
from tokenmill.samples.mixing import Course, Point, Schedule
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
