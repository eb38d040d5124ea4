"""The tokens of samples, many batches at a time, in numpy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.samples import Ranks, Samples, TrainableSamples

from .gathering import Gathering, Rows, addresses_of


@dataclass(slots=True)
class Chunk:
    """Consecutive batches of one rank: where their samples lie."""

    samples: Samples
    """``steps * batch_size`` of them."""
    steps: int
    kept: npt.NDArray[np.bool_] | None
    """Which of them are there: with ``on_damage="skip"``, those that are not damaged; None: all."""
    _gathering: Gathering
    """Those that are there."""
    _before: npt.NDArray[np.int64] | None
    """How many are there before each, and in all; None: all."""

    def rows(self, start: int, stop: int) -> Rows:
        """Return the tokens of these samples, of those that are there, ``[samples, sequence_length + 1]``."""
        if self._before is not None:
            start, stop = int(self._before[start]), int(self._before[stop])
        return self._gathering.rows(start, stop)


class RowReader:
    """Finds the rows of a rank's next steps, which costs least for many at once; they are copied batch by batch."""

    def __init__(self, trainable: TrainableSamples, ranks: Ranks, sequence_length: int, *, skip: bool) -> None:
        self.trainable = trainable
        self._ranks = ranks
        self._length = sequence_length
        self._skip = skip

    def read(self, first: int, steps: int) -> Chunk | None:
        """Return the next steps from sample ``first`` on, as many as are there, ``steps`` at most; None if none is.

        Raises:
            as in `TrainableSamples.ready`.

        """
        ready = self._ranks.steps_in(self.trainable.ready(first, steps * self._ranks.turn))
        if not ready:
            return None
        return self.find(self.trainable.locate(self._ranks.samples(first, ready)), ready)

    def find(self, samples: Samples, steps: int = 1) -> Chunk:
        """Return samples, one at least, as a chunk."""
        addresses = np.empty(len(samples.blocks), np.int64)
        kept = np.zeros(len(addresses), np.bool_) if self._skip else None
        maps: list[Rows] = []
        for partition in np.flatnonzero(np.bincount(samples.partitions)).tolist():
            mine = np.flatnonzero(samples.partitions == partition)
            for where, tokens, found in self.trainable.reader(partition).parts(samples.blocks[mine]):
                into = mine[where]
                starts = found * tokens.shape[1]
                if tokens.shape[1] != self._length + 1:  # a view begins with the last token of the one before
                    starts += samples.views[into] * self._length
                addresses[into] = addresses_of(tokens, starts)
                maps.append(tokens)
                if kept is not None:
                    kept[into] = True
        before = None
        if kept is not None:
            addresses = addresses[kept]
            before = np.concatenate([[0], np.cumsum(kept)])
        gathering = Gathering(addresses, self._length + 1, self.trainable.dtype, maps)
        return Chunk(samples, steps, kept, gathering, before)
