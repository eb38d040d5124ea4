"""Batches of a stream's samples, as tensors: the same sequence for any number of ranks, resumed exactly."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from itertools import chain, count, repeat
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NoReturn, Self

import torch

from tokenmill.errors import InputError
from tokenmill.samples import Position, TrainableSamples, count_views
from tokenmill.store import OnDamage, open_eras, read_stream

from . import arguments
from .batch import Batch
from .metrics import Behind, Head, Metrics
from .reachable import ReachableStream
from .rows import RowReader
from .staging import device_of, open_staging
from .waiting import Patience

_CHUNK_BYTES: Final = 16 << 20
"""Of tokens that are looked up in one go: 512 batches of 16 x 1024 share the cost of finding them in the store."""
_CHUNK_SAMPLES: Final = 8192
"""At most, so that the first batch of small samples comes soon."""
_NO_DATASET: Final = (
    "Batches has no length, and is no dataset for a DataLoader, whose workers would all read the same: loop over it "
    "directly, or give the DataLoader a StepDataset of the same arguments, with batch_size=None"
)


class _End(Enum):
    """What comes behind the last batch."""

    END = 0


_END: Final = _End.END


class Batches:
    """An iterable over the samples of a stream in a store, in the one order that its eras and the seed give.

    Step by step, the next ``world_size * batch_size`` samples of the sequence are taken, of which each rank gets a
    slice of its own. Which these are depends on nothing else: not on what is in the store now, nor on the number of
    ranks. Where no whole step is trainable yet, iteration waits. It ends where the eras that were named do, or with the
    stream's end marker, for all ranks at the same step; what is too little for a step is left.

    Iterating goes on where `state_dict` stands, so a second loop continues the first; `rewind` goes back to the
    beginning. Nothing here talks to Kafka; any copy of a store will do, also one that is being written.
    """

    def __init__(
        self,
        store: Path | str,
        stream: str,
        *,
        batch_size: int,
        sequence_length: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        shuffle: bool = True,
        eras: range | None = None,
        passes: int = 1,
        prefetch: int = 2,
        mask_loss: bool = False,
        widen: bool = True,
        worker: tuple[int, int] = (0, 1),
        check: bool = False,
        on_damage: OnDamage = "refuse",
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
        poll_seconds: float = 0.05,
    ) -> None:
        """Open a stream at the beginning of the sequence.

        Args:
            store: directory of the store.
            stream: name of the stream, such as ``raw-text.train``.
            batch_size: samples of this rank in each batch.
            sequence_length: tokens of each sample; the stream's ``block_tokens - 1`` or a divisor of it.
            seed: of the order, any int64.
            rank: this process among those that get different data, from 0.
            world_size: how many these are.
            device: where the tensors go; for CUDA through pinned memory, without blocking.
            shuffle: False takes the samples of each era by partition and number.
            eras: which eras to take, ``range(first, stop)``; None: all, as they come, up to the stream's end marker.
            passes: how often to go through them, each time in another order.
            prefetch: batches whose copies to a CUDA device are begun ahead of the one that is delivered, 1024 at most.
            mask_loss: set y to -100, which torch's cross entropy ignores, where x and y are of different documents or y
                is padding; reads the documents of each batch.
            widen: False leaves x and y in the dtype that the tokens have on disk (torch.uint8, uint16 or uint32), as
                overlapping views of one tensor, for those who convert them themselves; see also ``Batch.rows``.
            worker: number and count of the processes that read this rank's steps in turns; `StepDataset` gives them.
            check: hold every block against its CRC (halves the reading speed; without ``widen``, a quarter is left).
            on_damage: "skip" checks, and leaves damaged blocks out: a batch is smaller by them (one that would hold
                none is left out), ``skipped`` counts them, and the log names them. Steps stay what they are, so ranks
                still agree on all others.
            timeout: seconds to wait for one batch, 0 not to wait at all; None waits for ever.
            stop: asked before each batch and while waiting; iteration ends when it says True.
            poll_seconds: how often to look for new eras and blocks while waiting. A look costs a few small reads.

        Raises:
            StoreError: the store holds no such stream.
            DiskError: a file may not be read, or its disk fails.
            InputError: an argument cannot be used.
            DamagedError: the files are damaged.

        """
        self._ranks = arguments.ranks_of(batch_size, rank, world_size, worker)
        asked = arguments.sequence_of(stream, sequence_length, seed=seed, shuffle=shuffle, eras=eras, passes=passes)
        prefetch = arguments.prefetch_of(prefetch)
        self._mask_loss = arguments.flag("mask_loss", mask_loss)
        if not arguments.flag("widen", widen) and mask_loss:
            raise InputError(
                "mask_loss sets y to -100, which only int64 holds: leave out widen=False, or mask yourself"
            )
        self._skips = arguments.choice("on_damage", on_damage, ("refuse", "skip")) == "skip"
        check = arguments.flag("check", check)
        self._patience = Patience(arguments.timeout_of(timeout), arguments.seconds("poll_seconds", poll_seconds))
        self._stop = arguments.callable_of("stop", stop)
        target = device_of(device)
        self._store = arguments.store_of(store)
        self._info = read_stream(self._store, stream)
        self._reachable = ReachableStream(self._store, stream)
        length = asked.sequence_length
        views = count_views(self._info.block_tokens, length)
        sequence = replace(asked, fingerprint=self._info.fingerprint.hex())
        self._position = Position.beginning(sequence, self._ranks.global_batch)
        self._made = 0
        """Steps delivered since ``_position``."""
        self._turn = 0
        """Counts what makes running iterations invalid."""
        self._prefetch = prefetch if target.type == "cuda" else 0
        self._delivered = self._missing = 0
        """Batches so far, and the damaged samples that they lack."""
        self._waited = self._worked = 0.0
        with self._reachable:
            self._head = Head(open_eras(self._store, stream), sequence, views)
            self._trainable = TrainableSamples(
                self._store, self._info, sequence, views, check=check, on_damage=on_damage, whole=True
            )
        self._reader = RowReader(self._trainable, self._ranks, length, skip=self._skips)
        self._row_bytes = (length + 1) * self._info.dtype.itemsize
        self._chunk_steps = max(min(_CHUNK_BYTES // self._row_bytes, _CHUNK_SAMPLES) // self._ranks.batch_size, 1)
        self._staging = open_staging(
            self._ranks.batch_size,
            length + 1,
            self._info.dtype,
            target,
            widen=widen,
            slots=self._prefetch + 2,  # one is filled while the one before it, and those ahead, are on their way
        )

    def __repr__(self) -> str:
        sequence, ranks = self._position.sequence, self._ranks
        first, stop = sequence.eras
        return (
            f"Batches({str(self._store)!r}, {self._info.name!r}, batch_size={ranks.batch_size}, "
            f"sequence_length={sequence.sequence_length}, seed={sequence.seed}, rank={ranks.rank} of "
            f"{ranks.world_size}, eras={f'{first} on' if stop is None else f'{first} to {stop - 1}'}, "
            f"next step {self.step})"
        )

    def __len__(self) -> NoReturn:
        raise TypeError(_NO_DATASET)  # what DataLoader asks of all that is no IterableDataset, before it begins

    def __bool__(self) -> bool:
        return True  # else Python would ask for the length

    def __getstate__(self) -> NoReturn:
        raise TypeError(_NO_DATASET)  # what a DataLoader's workers do that are not forked

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from here on.

        Raises:
            StoreError: no batch came within ``timeout`` seconds, or the store is not there any more.
            DiskError: a file may not be read, or its disk fails.
            InputError: the store does not hold the samples any more, the state lies behind the sequence's end, or the
                whole sequence has too few samples for one step; or `load_state_dict`, `rewind` or another iteration
                came between.
            DifferenceError: the store holds other blocks than its eras speak of.
            DamagedError: a file is damaged (with ``check``: a block).

        """
        self._settle()
        turn, before, skips = self._turn, self._position.step - 1, self._skips
        stop, staging, patience, reachable = self._stop, self._staging, self._patience, self._reachable
        source = _run_ahead(self._produce(), self._prefetch) if self._prefetch else self._produce()
        waits, clock = True, perf_counter
        asked = clock()
        while stop is None or not stop():
            with reachable:
                made = next(source, _END)
            if made is _END:
                return
            if made is None:
                waits = True
                reachable.require()
                patience.wait(self._awaited())
                now = clock()
                self._waited += now - asked
                asked = now
                continue
            if waits:
                waits = False
                patience.end()
            if staging.carries:
                staging.deliver(made._sent)  # noqa: SLF001 - of this package
            if self._mask_loss:
                made.mask_loss()
            if skips:
                self._missing += self._ranks.batch_size - len(made.x)
            self._made = made.step - before
            self._delivered += 1
            given = clock()
            self._waited += given - asked
            yield made
            del made  # its memory can be the next one's, here or on a device
            asked = clock()
            self._worked += asked - given
            if turn != self._turn:
                raise InputError("these Batches were set to another place meanwhile: begin a new iteration there")

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that were delivered: small, JSON, equal on every rank."""
        return self._position.after(self._made).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved, by any rank of a run with any number of ranks and any batch size.

        The next iteration delivers the samples that come next there. A state that is ahead of the store is waited for.

        Raises:
            InputError: it is no state, or one of another sequence of samples: another stream, fingerprint, seed,
                sequence length or choice of eras.

        """
        state = arguments.state_of(state_dict, {"format"}, "what state_dict() of Batches returned")
        position = Position.from_dict(state, self._position.sequence)
        self._settle()
        self._position = position.with_batches_of(self._ranks.global_batch)

    def rewind(self) -> Self:
        """Go back to the beginning of the sequence, as for each validation."""
        self._settle()
        self._position = Position.beginning(self._position.sequence, self._ranks.global_batch)
        return self

    def skip(self, steps: int) -> Self:
        """Go on so many steps later (of each worker's), without reading them.

        Raises:
            InputError: it is no number of steps, 0 or more.

        """
        steps = arguments.whole("steps", steps, 0, "steps")
        self._settle()
        self._position = self._position.after(steps * self._ranks.workers)
        return self

    @property
    def step(self) -> int:
        """The number of the next step, counted from the beginning of the sequence."""
        return self._position.after(self._made).step

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._info.name

    @property
    def metrics(self) -> Metrics:
        """What was delivered up to now, and how long the loop waited for it."""
        samples = self._delivered * self._ranks.batch_size - self._missing
        return Metrics(
            batches=self._delivered,
            samples=samples,
            tokens=samples * self._position.sequence.sequence_length,
            bytes=samples * self._row_bytes,
            work_seconds=self._worked,
            wait_seconds=self._waited,
            store_wait_seconds=self._patience.waited_seconds,
            device_wait_seconds=self._staging.stalled_seconds,
        )

    def behind(self) -> Behind:
        """Return how much there is in the store beyond the next step; costs a small read, in any thread.

        Raises:
            StoreError: the store is not there any more.
            DamagedError: the files of the eras are damaged.

        """
        with self._reachable:
            return self._head.behind(self._position.after(self._made).sample)

    @property
    def waited_seconds(self) -> float:
        """Seconds spent waiting for eras and blocks."""
        return self._patience.waited_seconds

    @property
    def skipped(self) -> int:
        """Number of damaged blocks that this rank left out so far."""
        return sum(len(reader.skipped) for reader in self._trainable.readers.values())

    def _settle(self) -> None:
        """Stand where the last delivered batch ended; what was read ahead is forgotten."""
        self._turn += 1
        self._position = self._position.after(self._made)
        self._made = 0

    def _produce(self) -> Iterator[Batch | None]:
        """Yield batches ahead of those that were delivered; None where the next one must be waited for."""
        sample, step = self._position.sample, self._position.step
        size, ranks, send = self._ranks.batch_size, self._ranks, self._staging.send
        while True:
            chunk = self._reader.read(sample, self._chunk_steps)
            if chunk is None:
                if self._is_end(sample):
                    return
                yield None
                continue
            sent = chain.from_iterable(map(send, chunk.stretches()))  # holds no batch while it makes the next
            made = map(Batch, sent, count(step + ranks.worker, ranks.workers), repeat(chunk), count(0, size))
            yield from made if chunk.kept is None else filter(_has_rows, made)
            sample += chunk.steps * ranks.turn
            step += chunk.steps * ranks.workers

    def _is_end(self, sample: int) -> bool:
        """Whether no step of this process comes after ``sample``."""
        total = self._trainable.total()
        if total is None:
            return False
        begun = self._position.sample - (
            self._ranks.turn - self._ranks.global_batch
        )  # a worker's turn may begin behind
        if begun > total:
            raise InputError(
                f"the state stands at sample {self._position.sample}, but these eras of {self._info.name} have {total} "
                "in all passes: name the eras that it was saved with, or more; or skip fewer steps"
            )
        if not self._position.sample and total < self._ranks.global_batch:
            raise arguments.too_large(self._ranks, self._position.sequence, total)
        return not self._ranks.steps_in(total - sample)

    def _awaited(self) -> str:
        """Say what is missing, and what to do."""
        place = f"of {self._info.name} in {self._store}"
        number = self._trainable.next_era(self._position.after(self._made + 1).sample - 1)
        if not self._trainable.eras.eras:
            return (
                f"the first era {place}: mill workers write eras and the segment worker brings them; check that both "
                "run and are of this version, copy eras.jsonl and eras.index to a store that is a copy"
            )
        return (
            f"era {number} {place}: check that mill and segment worker run and that text flows, close the stream "
            "(`tokenmill close`), name eras that are there"
        )


def _has_rows(batch: Batch) -> bool:
    """Whether not all of a batch is damaged."""
    return len(batch.x) > 0


def _run_ahead(source: Iterator[Batch | None], count: int) -> Iterator[Batch | None]:
    """Yield what ``source`` does, which has by then begun ``count`` batches more; None only where nothing is left."""
    ahead: deque[Batch] = deque()
    made: Batch | _End | None = None
    while True:
        while made is not _END and len(ahead) <= count:
            made = next(source, _END)
            if made is None:
                break
            if made is not _END:
                ahead.append(made)
        if not ahead and made is _END:
            return
        yield ahead.popleft() if ahead else None
