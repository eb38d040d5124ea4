"""Batches of a stream's blocks, as tensors."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tokenmill.errors import InputError, StoreError
from tokenmill.segments import OnDamage, PartitionReader, open_partition, partitions_in, read_stream

from .sequence import Run, count, cut
from .staging import Staging


class Batch(NamedTuple):
    """One rank's part of a step; ``x, y = batch`` works."""

    x: torch.Tensor
    """``[batch_size, sequence_length]``, int64."""
    y: torch.Tensor
    """The next tokens: ``y[i, j]`` follows ``x[i, j]``."""


class Batches:
    """An iterable over the blocks of a stream in a store; one block is one sample.

    By default it is a snapshot: the blocks that are committed at opening, partition by partition. Each step takes the
    next ``world_size * batch_size`` of them, of which each rank gets a slice of its own; what is too little for a step
    is left. All ranks must hold the same snapshot: where the store may be growing, open rank 0 first and give its
    ``snapshot`` to the others.

    With ``follow``, it goes on with blocks as they are committed, and waits for more. Each step's blocks come from one
    partition, in the chain's order, the partitions taking turns as far as they have enough. Ranks never share a block,
    but may meet the partitions' turns in different orders.

    Every iteration begins at the beginning. Nothing here talks to Kafka; any copy of a store will do.
    """

    def __init__(
        self,
        store: Path | str,
        stream: str,
        *,
        batch_size: int,
        sequence_length: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        follow: bool = False,
        snapshot: Sequence[Run] | None = None,
        check: bool = False,
        on_damage: OnDamage = "refuse",
        timeout: float | None = None,
        stop: Callable[[], bool] = lambda: False,
        poll_seconds: float = 0.05,
    ) -> None:
        """Open a stream.

        Args:
            store: directory of the store.
            stream: name of the stream, such as ``raw-text.train``.
            batch_size: samples of this rank in each batch.
            sequence_length: tokens of each sample; the stream's ``block_tokens - 1``, for x and y overlap.
            rank: this process among those that train together, from 0.
            world_size: how many train together.
            device: where the tensors go; for CUDA through pinned memory, without blocking.
            follow: go on with what is committed later.
            snapshot: the ``snapshot`` of another rank; None takes one now.
            check: hold every block against its CRC (halves the reading speed).
            on_damage: "skip" checks, and leaves damaged blocks out: a batch is smaller by them (one that would hold
                none is left out), ``skipped`` counts them, and the log names them. Steps stay what they are, so ranks
                still agree on all others.
            timeout: seconds to wait for one batch when following; None waits for ever.
            stop: asked before each batch and while waiting; iteration ends when it says True.
            poll_seconds: how often to look for new blocks while waiting. A look costs one small read per partition.

        Raises:
            StoreError: the store holds no such stream.
            InputError: an argument cannot be used, or the snapshot holds less than one step.

        """
        self._info = read_stream(store, stream)
        if sequence_length != self._info.block_tokens - 1:
            raise InputError(
                f"sequence_length is {sequence_length}, but blocks of {stream} have {self._info.block_tokens} tokens "
                f"for sequences of {self._info.block_tokens - 1}: give that, or mill a stream of another length"
            )
        if batch_size < 1 or not 0 <= rank < world_size:
            raise InputError(
                f"batch_size {batch_size}, rank {rank}, world_size {world_size}: give a batch_size above 0 "
                "and a rank from 0 to below world_size"
            )
        self.waited_seconds = 0.0
        """Time spent waiting for blocks to be committed."""
        self._store = Path(store)
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._device = torch.device(device)
        self._follow = follow
        self._check = check
        self._on_damage: OnDamage = on_damage
        self._timeout = timeout
        self._stop = stop
        self._poll_seconds = poll_seconds
        self._readers: dict[int, PartitionReader] = {}
        self.snapshot: tuple[Run, ...] = tuple(snapshot if snapshot is not None else self._look())
        """What was committed at opening: the range of blocks of each partition."""
        if not follow and not len(self):
            raise InputError(
                f"the snapshot of {stream} holds {count(self.snapshot)} blocks, and a step takes {self._step}: "
                "wait until there are more, pass follow=True, or take smaller batches"
            )

    def __len__(self) -> int:
        """Return the number of batches in the snapshot."""
        return count(self.snapshot) // self._step

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches from the beginning.

        Raises:
            StoreError: following, and no batch came within ``timeout`` seconds.
            InputError: the snapshot of another rank holds blocks that this store does not.
            DamagedError: a segment is damaged (with ``check``: a block).

        """
        staging = Staging(self._batch_size, self._info.block_tokens, self._info.dtype, self._device)
        for runs in self._live_runs() if self._follow else self._snapshot_runs():
            if self._stop():
                return
            rows = staging.host_rows()
            start = 0
            for run in runs:
                stop = start + run.blocks
                found = self._reader(run.partition).gather(np.arange(run.first, run.stop), rows[start:stop])
                start += len(found)
            if start:
                yield Batch(*staging.to_device(start))

    @property
    def skipped(self) -> int:
        """Number of damaged blocks that this rank left out so far."""
        return sum(len(reader.skipped) for reader in self._readers.values())

    @property
    def _step(self) -> int:
        """Blocks that all ranks together take in one step."""
        return self._batch_size * self._world_size

    def _snapshot_runs(self) -> Iterator[list[Run]]:
        """Yield this rank's blocks of each step."""
        for step in range(len(self)):
            start = step * self._step + self._rank * self._batch_size
            yield cut(self.snapshot, start, start + self._batch_size)

    def _live_runs(self) -> Iterator[list[Run]]:
        """Yield this rank's blocks of each step, as steps become whole; end when told to stop."""
        taken: dict[int, int] = {}
        since = time.monotonic()
        while True:
            ready = False
            for partition, first, stop in self._look():
                start = taken.get(partition, first)
                if stop - start >= self._step:
                    ready = True
                    taken[partition] = start + self._step
                    mine = start + self._rank * self._batch_size
                    yield [Run(partition, mine, mine + self._batch_size)]
                    since = time.monotonic()
            if not ready and not self._wait(since):
                return

    def _wait(self, since: float) -> bool:
        """Sleep until the next look; False when it is time to end."""
        if self._stop():
            return False
        waiting = time.monotonic()
        if self._timeout is not None and waiting - since > self._timeout:
            raise StoreError(
                f"no new batch of {self._info.name} within {self._timeout} seconds in {self._store}: "
                "check that the segment worker runs and that text flows, or wait longer (timeout)"
            )
        time.sleep(self._poll_seconds)
        self.waited_seconds += time.monotonic() - waiting
        return True

    def _look(self) -> list[Run]:
        """Return what is committed now."""
        runs = []
        for partition in partitions_in(self._store, self._info.name):
            reader = self._reader(partition)
            runs.append(Run(partition, reader.first_block, reader.refresh()))
        return [run for run in runs if run.blocks]

    def _reader(self, partition: int) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            place = (self._store, self._info.name, partition)
            reader = open_partition(*place, check=self._check, on_damage=self._on_damage)
            self._readers[partition] = reader
        return reader
