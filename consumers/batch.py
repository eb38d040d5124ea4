"""One rank's part of one step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from tokenmill.errors import InputError
from tokenmill.samples import Samples, Source, places_of, sources_of

from .documents import Documents, documents_of
from .gathering import Rows
from .reachable import ReachableStream
from .rows import Chunk
from .staging import Sent, Staged

IGNORED: Final = -100
"""What no loss is computed of: the default ``ignore_index`` of torch's cross entropy."""


class XY(NamedTuple):
    """Tokens, and the next token of each: int64, of one shape."""

    x: torch.Tensor
    y: torch.Tensor


@dataclass(slots=True, eq=False)
class Batch:
    """The samples of one rank in one step; ``x, y = batch`` works."""

    _sent: Sent
    step: int
    """The number of the step, counted through all runs that went on from each other's state."""
    _chunk: Chunk
    _start: int
    """Which of the chunk's samples is the first one."""

    def __repr__(self) -> str:
        x = self.x
        return (
            f"Batch({self._chunk.trainable.stream!r}, step={self.step}, x and y {list(x.shape)} of {x.dtype} on "
            f"{x.device})"
        )

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.x
        yield self.y

    @property
    def x(self) -> torch.Tensor:
        """Tokens, ``[batch_size, sequence_length]``, int64 (without ``widen``: of the stored dtype), on the device.

        With ``on_damage="skip"``, rows whose blocks are damaged are missing.
        """
        return self._sent.x if isinstance(self._sent, Staged) else torch.from_numpy(self._sent[:, :-1])

    @property
    def y(self) -> torch.Tensor:
        """The next tokens, of the shape and dtype of x: ``y[i, j]`` follows ``x[i, j]``; -100 where masked."""
        return self._sent.y if isinstance(self._sent, Staged) else torch.from_numpy(self._sent[:, 1:])

    @property
    def rows(self) -> Rows:
        """The tokens as they are stored, on the host: ``[batch_size, sequence_length + 1]``, for numpy and JAX.

        Of the stream's dtype: uint8, uint16 or uint32.

        Raises:
            InputError: they were widened, or sent to a device.

        """
        if isinstance(self._sent, Staged):
            raise InputError("this batch was widened or sent to a device: open Batches on the CPU, with widen=False")
        return self._sent

    @property
    def samples(self) -> Samples:
        """Where each row comes from: partition, block, and which view of it; three arrays, ``[rows]``, int64."""
        part = slice(self._start, self._start + self._chunk.batch_size)
        found = Samples(*(column[part] for column in self._chunk.samples()))
        return found if self._chunk.kept is None else Samples(*(column[self._chunk.kept[part]] for column in found))

    def documents(self) -> Documents:
        """Return which tokens belong to which document, from the boundaries that the store keeps.

        Costs a small read for each row. Works as long as the store holds the blocks.

        Raises:
            InputError: the blocks were retired since.
            StoreError: the store is not there any more.
            DamagedError: the document table is damaged.

        """
        samples, trainable = self.samples, self._chunk.trainable
        with ReachableStream(trainable.store, trainable.stream):
            pieces = [trainable.reader(partition).pieces(block) for partition, block, _ in places_of(samples)]
        return documents_of(pieces, samples.views, self.x.shape[1], self.x.device)

    def sources(self) -> list[list[Source]]:
        """Return, for each row, the Kafka records that its tokens came from; costs nothing before it is called.

        Raises:
            InputError, StoreError, DamagedError: as in `documents`.

        """
        length, trainable = self.x.shape[1], self._chunk.trainable
        with ReachableStream(trainable.store, trainable.stream):
            return [
                sources_of(trainable.reader(partition), block, view, length)
                for partition, block, view in places_of(self.samples)
            ]

    def mask_loss(self) -> None:
        """Set y to `IGNORED` where x and y are of different documents, or y is padding."""
        self.y.masked_fill_(~self.documents().loss_mask, IGNORED)
