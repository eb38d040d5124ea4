"""The tokens of samples, many batches at a time, in numpy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.samples import Ranks, Samples, TrainableSamples

from .gathering import Rows, addresses_of, gather_rows


@dataclass(slots=True)
class Chunk:
    """Consecutive batches of one rank, laid end to end."""

    rows: Rows
    """``[steps * batch_size, sequence_length + 1]``."""
    samples: Samples
    """Where each comes from."""
    steps: int
    kept: npt.NDArray[np.bool_] | None
    """Which rows are there: with ``on_damage="skip"``, those that are not damaged; None: all."""


class RowReader:
    """Copies the rows of a rank's next steps, which costs least for many at once."""

    def __init__(self, trainable: TrainableSamples, ranks: Ranks, sequence_length: int, *, skip: bool) -> None:
        self.trainable = trainable
        self._ranks = ranks
        self._length = sequence_length
        self._skip = skip

    def read(self, first: int, steps: int) -> Chunk | None:
        """Read the next steps from sample ``first`` on, as many as are there, ``steps`` at most; None if none is.

        Raises:
            as in `TrainableSamples.ready`.

        """
        ready = self._ranks.steps_in(self.trainable.ready(first, steps * self._ranks.turn))
        if not ready:
            return None
        samples = self.trainable.locate(self._ranks.samples(first, ready))
        rows, kept = self.gather(samples)
        return Chunk(rows, samples, ready, kept)

    def gather(self, samples: Samples) -> tuple[Rows, npt.NDArray[np.bool_] | None]:
        """Return the tokens of samples, ``[samples, sequence_length + 1]``, and which of them are there; None: all.

        Rows that are not there are zeros.
        """
        count, columns = len(samples.blocks), self._length + 1
        addresses = np.empty(count, np.int64)
        kept = np.zeros(count, np.bool_) if self._skip else None
        maps: list[Rows] = []
        for partition in np.flatnonzero(np.bincount(samples.partitions)).tolist():
            mine = np.flatnonzero(samples.partitions == partition)
            for where, tokens, found in self.trainable.reader(partition).parts(samples.blocks[mine]):
                into = mine[where]
                starts = found * tokens.shape[1]
                if tokens.shape[1] != columns:  # a view begins with the last token of the one before
                    starts += samples.views[into] * self._length
                addresses[into] = addresses_of(tokens, starts)
                maps.append(tokens)
                if kept is not None:
                    kept[into] = True
        if kept is None or kept.all():
            return gather_rows(addresses, columns, maps), kept
        rows = np.zeros((count, columns), self.trainable.dtype)
        if maps:
            rows[kept] = gather_rows(addresses[kept], columns, maps)
        return rows, kept
