"""The one sequence of samples of a training run: arithmetic, a run's state, and which samples a store holds."""

from tokenmill.samples.content import UNPINNED, UsedContent
from tokenmill.samples.mixing import Mixer, Piece, Plan
from tokenmill.samples.needed import first_needed, read_state
from tokenmill.samples.position import Content, Position, SequenceId, StepRange
from tokenmill.samples.schedule import Change, Course, Point, Schedule
from tokenmill.samples.sequence import EraOrder, Numbers, Ranks, Samples, count_views, join
from tokenmill.samples.source import Source, places_of, sources_of
from tokenmill.samples.tracing import TracedRecord, TracedSample, TracedView, Tracer, Use
from tokenmill.samples.trainable import TrainableSamples

__all__ = [
    "UNPINNED",
    "Change",
    "Content",
    "Course",
    "EraOrder",
    "Mixer",
    "Numbers",
    "Piece",
    "Plan",
    "Point",
    "Position",
    "Ranks",
    "Samples",
    "Schedule",
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
    "places_of",
    "read_state",
    "sources_of",
]
