"""The tokens of samples, many batches at a time, in numpy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.samples import Numbers, Ranks, Samples, TrainableSamples

Rows = npt.NDArray[np.unsignedinteger]


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
    """Fills buffers with the rows of a rank's next steps, which costs least for many at once: it goes by segment."""

    def __init__(self, trainable: TrainableSamples, ranks: Ranks, sequence_length: int, *, skip: bool) -> None:
        self.trainable = trainable
        self._ranks = ranks
        self._length = sequence_length
        self._skip = skip
        self._scratch: Rows | None = None

    def read(self, first: int, steps: int, buffer: Callable[[], Rows]) -> Chunk | None:
        """Read the next steps from sample ``first`` on, as many as are there, ``steps`` at most; None if none is.

        ``buffer()`` is asked, if there is something to read, for ``[steps * batch_size, sequence_length + 1]``.

        Raises:
            as in `TrainableSamples.ready`.

        """
        ready = self._ranks.steps_in(self.trainable.ready(first, steps * self._ranks.turn))
        if not ready:
            return None
        samples = self.trainable.locate(self._ranks.samples(first, ready))
        rows = buffer()[: ready * self._ranks.batch_size]
        return Chunk(rows, samples, ready, self.fill(samples, rows))

    def fill(self, samples: Samples, rows: Rows) -> npt.NDArray[np.bool_] | None:
        """Copy samples into rows; return which of them are there, None if all are."""
        kept = np.zeros(len(rows), np.bool_) if self._skip else None
        for partition in np.flatnonzero(np.bincount(samples.partitions)).tolist():
            mine = np.flatnonzero(samples.partitions == partition)
            for where, tokens, found in self.trainable.reader(partition).parts(samples.blocks[mine]):
                into = mine[where]
                if tokens.shape[1] == rows.shape[1]:
                    self._copy(tokens, found, rows, into)
                else:
                    rows[into] = views_of(tokens, self._length)[found, samples.views[into]]
                if kept is not None:
                    kept[into] = True
        return kept

    def _copy(self, tokens: Rows, found: Numbers, rows: Rows, into: Numbers) -> None:
        """Copy whole blocks, through a buffer that is kept: to allocate one costs more than to copy twice."""
        if len(into) == len(rows):  # all in one segment, in their order
            np.take(tokens, found, axis=0, out=rows, mode="clip")
            return
        if self._scratch is None or len(self._scratch) < len(found):
            self._scratch = np.empty((len(found), rows.shape[1]), rows.dtype)
        scratch = self._scratch[: len(found)]
        np.take(tokens, found, axis=0, out=scratch, mode="clip")  # "clip" spares take a buffer of its own
        whole(rows)[into] = whole(scratch)


def whole(rows: Rows) -> npt.NDArray[np.void]:
    """Return contiguous rows as single items, ``[len(rows)]``, without a copy: numpy copies these with less ado."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).reshape(-1)


def views_of(tokens: Rows, sequence_length: int) -> Rows:
    """Return the views of blocks, ``[blocks, views, sequence_length + 1]``, without a copy: each begins with the last
    token of the one before.
    """  # noqa: D205 - one sentence
    windows: Rows = np.lib.stride_tricks.sliding_window_view(tokens, sequence_length + 1, axis=1)
    return windows[:, ::sequence_length]
