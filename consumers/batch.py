"""One rank's part of one step."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .rows import Chunk
from .sequence import Samples
from .trainable import TrainableSamples


@dataclass(slots=True, eq=False)
class Batch:
    """The samples of one rank in one step; ``x, y = batch`` works."""

    x: torch.Tensor
    """``[batch_size, sequence_length]``, int64."""
    y: torch.Tensor
    """The next tokens: ``y[i, j]`` follows ``x[i, j]``."""
    step: int
    """The number of the step, counted through all runs that went on from each other's state."""
    _chunk: Chunk
    _start: int
    _stop: int
    _trainable: TrainableSamples

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.x
        yield self.y

    @property
    def samples(self) -> Samples:
        """Where each row comes from: partition, block, and which view of it."""
        part = slice(self._start, self._stop)
        found = Samples(*(column[part] for column in self._chunk.samples))
        return found if self._chunk.kept is None else Samples(*(column[self._chunk.kept[part]] for column in found))
