"""What `Batches` have open, for what reads several of them."""

from typing import Any, NamedTuple

from tokenmill.samples import Ranks, SequenceId, TrainableSamples
from tokenmill.store import StreamInfo

from .metrics import Head
from .reachable import ReachableStream
from .rows import RowReader


class OpenBatches(NamedTuple):
    """What `Batches` have open."""

    info: StreamInfo
    sequence: SequenceId
    ranks: Ranks
    options: tuple[Any, ...]
    """What batches of several streams must have in common, beside these: device, checks and others."""
    trainable: TrainableSamples
    reader: RowReader
    head: Head
    reachable: ReachableStream
