"""What the raw partitions of a topic on one mill worker share: settings, stages, streams, and ways to brokers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from faust.types import TP

from tokenmill.milling.outcomes import Stages

from ..kafka.control_topic import Settled
from ..settings import Settings
from ..supervisor.in_flight import Board
from .publisher import Send
from .skip_list import SkipList


@dataclass(frozen=True, slots=True, kw_only=True)
class MillContext:
    """What all raw partitions of a topic on one worker share."""

    settings: Settings
    stages: Stages
    streams: Sequence[Settled]
    skip_list: SkipList
    retention: Mapping[str, float | None]
    """How long each token topic keeps its messages, in seconds; None: for ever."""
    require_partition: Callable[[int], Awaitable[None]]
    """Returns when all streams have a partition of this number; raises `TopicError` while they cannot."""
    send: Send
    partitions: Callable[[str], Awaitable[int]]
    """How many partitions a topic has that is sent to."""
    leader: Callable[[TP], object]
    """Something that differs once a partition that is sent to has another leader (`tokenmill.reading.log_end`)."""
    board: Board | None = None
    """Where a supervisor reads what is being milled."""
    start_partition: Callable[[TP, int], Awaitable[int | None]]
    set_durable: Callable[[TP, int], None]
