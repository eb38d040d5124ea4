"""Batches of a stream's samples, as tensors: the same sequence for any number of ranks, resumed exactly."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NoReturn, Self

import torch

from tokenmill.errors import DamagedError, InputError
from tokenmill.samples import Position, Ranks, TrainableSamples, count_views
from tokenmill.store import OnDamage, open_eras, read_stream

from . import arguments
from .batch import Batch, Leg
from .beside import LONG_SECONDS
from .metrics import Behind, Head, Metrics
from .opened import OpenBatches
from .phases import Phase, Phases, Sender, Stagings, Walk, batches_of, told_lengths
from .reachable import ReachableStream
from .read_ahead import DEFAULT_BYTES, open_read_ahead
from .rows import RowReader
from .staging import End, begin_ahead, device_of
from .waiting import StoreWait, awaited_era

_CHUNK_BYTES: Final = 16 << 20
"""Of tokens that are looked up in one go: 512 batches of 16 x 1024 share the cost of finding them in the store."""
_CHUNK_SAMPLES: Final = 8192
"""At most, so that the first batch of small samples comes soon."""
_NO_DATASET: Final = (
    "Batches is no dataset for a DataLoader, whose workers would all read the same: loop over it "
    "directly, or give the DataLoader a StepDataset of the same arguments, with batch_size=None"
)


class Batches:
    """An iterable over the samples of a stream in a store, in the one order that its eras and the seed give.

    Step by step, the next ``world_size * batch_size`` samples of the sequence are taken, of which each rank gets a
    slice of its own. Which these are depends on nothing else: not on what is in the store now, nor on the number of
    ranks. Where no whole step is trainable yet, iteration waits. It ends where the eras that were named do, or with the
    stream's end marker, for all ranks at the same step; what is too little for a step is left.

    Iterating goes on where `state_dict` stands, so a second loop continues the first; `rewind` goes back to the
    beginning. Nothing here talks to Kafka.
    """

    def __init__(
        self,
        store: Path | str,
        stream: str,
        *,
        batch_size: int | list[tuple[int, int]],
        sequence_length: int | list[tuple[int, int]],
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        shuffle: bool = True,
        in_order: bool = False,
        eras: range | None = None,
        passes: int = 1,
        prefetch: int = 2,
        mask_loss: bool = False,
        documents: bool = False,
        widen: bool = True,
        worker: tuple[int, int] = (0, 1),
        check: bool = True,
        on_damage: OnDamage = "refuse",
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
        poll_seconds: float = 0.05,
        read_ahead: int = DEFAULT_BYTES,
    ) -> None:
        """Open a stream at the beginning of the sequence.

        Args:
            store: directory of the store.
            stream: name of the stream, such as ``raw-text.train``.
            batch_size: samples of this rank in each batch; or a schedule, ``[(0, 4), (1000, 8)]``, from which step on
                how many.
            sequence_length: tokens of each sample; the stream's ``block_tokens - 1`` or a divisor of it. Or a schedule,
                ``[(0, 512), (10_000, 1024)]``, where steps of a smaller one have each sample as several rows.
            seed: of the order, any int64.
            rank: this process among those that get different data, from 0.
            world_size: how many these are.
            device: where the tensors go; for CUDA through pinned memory, without blocking.
            shuffle: False takes the samples of each era by partition and number.
            in_order: with the packing ``chunks``: give the segments of ``batch_size`` chunks in consecutive steps, so
                that a row of consecutive batches is consecutive text; ``batch.begins`` says where new chunks begin.
            eras: which eras to take, ``range(first, stop)``; None: all, as they come, up to the stream's end marker.
            passes: how often to go through them, each time in another order.
            prefetch: batches whose copies to a CUDA device are begun ahead of the one that is delivered, 1024 at most.
            mask_loss: set y to -100, which cross entropy ignores, where x and y are of other documents or y is padding.
            documents: send the documents of each batch along to other processes, for ``batch.documents()`` there.
            widen: False leaves x and y in the dtype on disk, as overlapping views of one tensor; see ``Batch.rows``.
            worker: number and count of the processes that read this rank's steps in turns; `StepDataset` gives them.
            check: hold what is read against the blocks' CRCs, and refuse damage, for a tenth to a third more time.
                False trains on whatever the files hold.
            on_damage: "skip" checks, and leaves damaged blocks out: a batch is smaller by them (one that would hold
                none is left out), ``skipped`` counts them, and the log names them. Ranks still agree on all others.
            timeout: seconds to wait for one batch, 0 not to wait at all; None waits for ever.
            stop: asked before each batch and while waiting; iteration ends when it says True.
            poll_seconds: how often to look for new eras and blocks while waiting.
            read_ahead: bytes of tokens that a thread reads into the page cache before they are wanted, 1 GiB; 0: none.

        Raises:
            StoreError: the store holds no such stream.
            DiskError: a file may not be read, or its disk fails.
            InputError: an argument cannot be used.
            DamagedError: the files are damaged.

        """
        self._phases = Phases(batch_size, sequence_length, rank, world_size, worker)
        self._ranks = self._phases.first
        asked = arguments.sequence_of(
            stream, self._phases.length, seed=seed, shuffle=shuffle, eras=eras, passes=passes, in_order=in_order
        )
        if asked.in_order:
            self._phases.require_one()
        prefetch = arguments.prefetch_of(prefetch)
        self._mask_loss = arguments.mask_loss_of(mask_loss, widen)
        self._skips = arguments.choice("on_damage", on_damage, ("refuse", "skip")) == "skip"
        check, sends = arguments.flag("check", check), arguments.flag("documents", documents)
        self._store_wait = StoreWait(arguments.timeout_of(timeout), arguments.seconds("poll_seconds", poll_seconds))
        self._stop = arguments.callable_of("stop", stop)
        target = device_of(device)
        self._store = arguments.store_of(store)
        self._info = read_stream(self._store, stream)
        self._reachable = ReachableStream(self._store, stream)
        length = asked.sequence_length
        self._views = views = count_views(self._info.block_tokens, length)
        if asked.in_order:
            arguments.require_chunks(self._info)
        sequence = replace(asked, fingerprint=self._info.fingerprint.hex())
        self._position = self._phases.plan(Position.beginning(sequence, self._ranks.global_batch))
        self._lengths = self._phases.lengths
        """From which step on rows had which length."""
        self._made = 0
        """Steps delivered since ``_position``."""
        self._turn = 0
        """Counts what makes running iterations invalid."""
        self._prefetch = prefetch if target.type == "cuda" else 0
        self._delivered = self._sampled = self._missing = 0  # the last: damaged samples that batches lack
        self._waited = self._worked = 0.0
        with self._reachable:
            self._head = Head(open_eras(self._store, stream), sequence, views)
            self._trainable = TrainableSamples(
                self._store, self._info, sequence, views, check=check, on_damage=on_damage, whole=True
            )
        ahead = open_read_ahead(read_ahead, self._trainable, documents=self._mask_loss)
        self._reader = RowReader(self._trainable, self._ranks, length, ahead, skip=self._skips, sends_documents=sends)
        self._row_bytes = (length + 1) * self._info.dtype.itemsize
        options = (str(target), prefetch, mask_loss, widen, check, on_damage, str(batch_size), str(self._lengths))
        self._most_samples = min(_CHUNK_BYTES // self._row_bytes, _CHUNK_SAMPLES)
        slots = self._prefetch + 2  # one is filled while the one before it, and those ahead, are on their way
        self._stagings = Stagings(self._phases, self._info.dtype, target, widen=widen, slots=slots)
        self.opened = OpenBatches(
            self._info, sequence, self._ranks, options, self._trainable, self._reader, self._head, self._reachable
        )
        """What is open, for what reads several streams: `Mixture`."""

    def __repr__(self) -> str:
        sequence, ranks = self._position.sequence, self._ranks
        first, stop = sequence.eras
        return (
            f"Batches({str(self._store)!r}, {self._info.name!r}, batch_size={ranks.batch_size}, "
            f"sequence_length={sequence.sequence_length}, seed={sequence.seed}, rank={ranks.rank} of "
            f"{ranks.world_size}, eras={f'{first} on' if stop is None else f'{first} to {stop - 1}'}, "
            f"next step {self.step})"
        )

    def __len__(self) -> int:
        """Return the number of steps of the whole run, those that were made included, where its end is known.

        It is where all eras that were named are in the store, or the stream has ended. Steps that were made with other
        batches count as they were made.

        Raises:
            TypeError: the end is not known; as Python and torch expect it of what has no length.

        """
        if (total := self._trainable.known_total()) is None:
            raise TypeError(
                f"how many batches {self._info.name} has is not known, for its end is not in {self._store}: name eras "
                "that are there (eras=range(0, 8)), close the stream (`tokenmill close`), or leave len() out"
            )
        return replace(self._position, sample=max(self._position.end(total, self._views), 0)).step

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(_NO_DATASET)  # what DataLoader asks of all that is no IterableDataset

    def __bool__(self) -> bool:
        return True  # else Python would ask for the length

    def __getstate__(self) -> NoReturn:
        raise TypeError(_NO_DATASET)  # what a DataLoader's workers do that are not forked

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from here on.

        Raises:
            StoreError: no batch came within ``timeout`` seconds, or the store is not there any more.
            DiskError: a file may not be read, or its disk fails.
            InputError: the store does not hold the samples any more, the state is behind the sequence's end or is one
                over other content, or the whole sequence has too few samples for one step; or `load_state_dict`,
                `rewind` or another iteration came between.
            DifferenceError: the store holds other blocks than its eras speak of.
            DamagedError: a file is damaged or cut off (with ``check``: a block, before its batch is delivered).

        """
        self._settle()
        turn, before, skips = self._turn, self._position.step - 1, self._skips
        stop, staging = self._stop, self._stagings.of(self._phases.at(0))
        store_wait, reachable = self._store_wait, self._reachable
        source = begin_ahead(self._produce(), self._prefetch) if self._prefetch else self._produce()
        waits, clock, end, carries, masks = True, perf_counter, End.END, staging.carries, self._mask_loss
        asked = clock()
        while stop is None or not stop():
            try:  # a context would cost a tenth of a small batch
                made = next(source, end)
            except (OSError, DamagedError):
                with reachable:
                    raise
            if made is end:
                return
            if made is None:
                waits = True
                reachable.require()
                store_wait.wait(self._awaited())
                began, asked = asked, clock()
                self._waited += asked - began
                continue
            if waits:
                waits = False
                store_wait.end()
            if carries:
                staging.deliver(made._sent)  # noqa: SLF001 - of this package
            if masks:
                made.mask_loss()
            chunk: Any = made._chunk  # noqa: SLF001 - as above
            self._sampled += chunk.batch_size
            if skips:
                self._missing += chunk.batch_size - len(made) // chunk.split
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
        """Return where the run stands, counting the batches that were delivered: small, JSON, equal on every rank.

        Raises DamagedError where the eras are damaged, and the run, just set to this place, has not read them.
        """
        return self._leg().state_after(self.step - 1)

    def state_after(self, step: int) -> dict[str, Any]:
        """Return where the run stands once all steps up to this one, and no later one, were trained on.

        For loops that know the number of the step that they are through with: ``batch.state`` by arithmetic, of any
        step of the run. Raises InputError where it is no number of a step, or one behind the run's end.
        """
        step = arguments.whole("step", step, 0, "steps")
        with suppress(TypeError):  # its end is not known
            if step >= (steps := len(self)):
                raise InputError(f"step is {step}, but the last one of this run is {steps - 1}: give a number up to it")
        return self._leg().state_after(step)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved, by any rank of a run with any number of ranks and any batch size.

        A state that is ahead of the store is waited for; whether it is one over the store's content, the iteration then
        says before its first batch. An old state, which names no content, is taken with a warning.

        Raises:
            InputError: it is no state, or one of another sequence of samples: another stream, fingerprint, seed,
                sequence length or choice of eras; or one of a run over other content.
            DamagedError: the eras are damaged.

        """
        state = arguments.state_of(state_dict, {"format"}, "what state_dict() of Batches returned")
        position = self._trainable.content.accept(Position.from_dict(state, self._position.sequence))
        arguments.require_resumable(position, self._ranks, self._views)
        self._settle()
        self._lengths = self._phases.merged(state.get("lengths"), position.step)
        self._position = self._phases.plan(position)

    def rewind(self) -> Self:
        """Go back to the beginning of the sequence, as for each validation."""
        self._settle()
        self._lengths = self._phases.lengths
        self._position = self._phases.plan(Position.beginning(self._position.sequence, self._ranks.global_batch))
        return self

    def skip(self, steps: int) -> Self:
        """Go on so many steps later (of each worker's), unread; raises InputError where it is no number of steps."""
        steps = arguments.whole("steps", steps, 0, "steps")
        self._settle()
        self._made = steps * self._ranks.workers
        self._settle()
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
        samples = self._sampled - self._missing
        return Metrics(
            *(self._delivered, samples, samples * self._position.sequence.sequence_length, samples * self._row_bytes),
            work_seconds=self._worked,
            wait_seconds=self._waited,
            store_wait_seconds=self._store_wait.waited_seconds,
            device_wait_seconds=self._stagings.stalled_seconds,
        )

    def behind(self) -> Behind:
        """Return how much there is in the store beyond the next step; costs a small read, in any thread.

        Raises StoreError where the store is not there any more, DamagedError where the files of the eras are damaged.
        """
        with self._reachable:
            return self._head.behind(self._position.after(self._made).sample)

    @property
    def skipped(self) -> int:
        """Number of damaged blocks that this rank left out so far."""
        return sum(len(reader.skipped) for reader in self._trainable.readers.values())

    def with_content(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return an earlier state of the same run that names the content that was used up to now."""
        return state | {"content": self.state_dict()["content"]}

    def _leg(self) -> Leg:
        """Return the part of the run that began where a state was loaded last, or at the beginning."""
        return Leg(self._position, self._trainable.content, told_lengths(self._lengths))

    def _settle(self) -> None:
        """Stand where the last delivered batch ended; what was read ahead is forgotten."""
        self._turn += 1
        self._position = self._position.after(self._made)
        self._made = 0

    def _produce(self) -> Iterator[Batch | None]:
        """Yield batches ahead of those that were delivered; None where the next one must be waited for."""
        walk, leg = Walk(self._phases, self._position, self._most_samples), repeat(self._leg())
        segments = self._position.segments(self._views)
        while True:
            phase, ranks, steps = walk.ahead()
            agrees = self._trainable.content.compare(self._position)  # else the state is ahead of the store
            self._reader.ranks = ranks
            chunk = self._reader.read(walk.sample, steps, segments) if agrees else None
            if chunk is None:
                if self._is_end(walk.sample, ranks):
                    return
                yield None
                continue
            yield from batches_of(chunk, phase, self._sent(phase), walk.numbers(), leg)
            walk.made(chunk.steps)

    def _sent(self, phase: Phase) -> Sender:
        return self._stagings.sent(phase, lambda: self._worked > LONG_SECONDS * self._delivered)

    def _is_end(self, sample: int, ranks: Ranks) -> bool:
        """Whether no step of this process comes after ``sample``."""
        total = self._trainable.total()
        if total is None:
            return False
        ahead = ranks.turn - ranks.global_batch  # a worker's turn may begin so far behind
        if self._position.sample - ahead > total:
            raise arguments.behind_end(self._position.sample, self._info.name, total)
        ends = self._position.end(total, self._views)
        if not self._position.sample and ends < ranks.global_batch:
            raise arguments.too_large(ranks, self._position.sequence, total)
        return not ranks.steps_in(ends - sample)

    def _awaited(self) -> str:
        return self.awaited(self._position.after(self._made + 1).sample - 1)

    def awaited(self, sample: int) -> str:
        """Say what is missing where this sample cannot be read, and what to do."""
        return awaited_era(self._info.name, self._store, self._trainable.next_era(sample), self._trainable.eras.eras)
