"""Batches of a stream's samples, as tensors: the same sequence for any number of ranks, resumed exactly."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tokenmill.bucket.cache import open_cache
from tokenmill.errors import InputError
from tokenmill.packings import Chunks
from tokenmill.samples.document_index import packing_in
from tokenmill.samples.sequence import Position, Ranks, SequenceId, count_views
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import OnDamage, read_stream
from tokenmill.store.layout import StorePath, ending, store_directory

from . import arguments
from .batch import Batch, StateAfter
from .prefetch import DEFAULT_BYTES, EraReadAhead
from .sample_lookup import RowOptions, RowReader
from .step_loop import Delivery, Found, Phases, Stagings, StepLoop
from .text import StoredTokenizer
from .transfer import device_of
from .waiting import Awaited, ReachableStream, StoreWait, awaited_era


class Batches(StepLoop):
    """An iterable over the samples of a stream in a store, in the one order that its eras and the seed give.

    Step by step, the next ``world_size * batch_size`` samples of the sequence are taken, of which each rank gets a
    slice of its own. Which these are depends on nothing else: not on what is in the store now, nor on the number of
    ranks. Where no whole step is trainable yet, iteration waits. It ends where the eras that were named do, or with the
    stream's end marker, for all ranks at the same step; what is too little for a step is left (``drop_last``).

    Iterating goes on where `state_dict` stands, so a second loop continues the first; `rewind` goes back to the
    beginning. Nothing here talks to Kafka.
    """

    @arguments.naming_unknown
    def __init__(
        self,
        store: StorePath,
        stream: str,
        *,
        batch_size: int | list[tuple[int, int]],
        sequence_length: int | list[tuple[int, int]] | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        device: torch.device | str = "cpu",
        shuffle: bool = True,
        in_order: bool = False,
        eras: range | None = None,
        passes: int = 1,
        drop_last: bool = True,
        prefetch: int = 2,
        mask_loss: bool = False,
        documents: bool = False,
        as_dict: bool = False,
        loss_weight: float = 1.0,
        widen: bool = True,
        worker: tuple[int, int] = (0, 1),
        check: bool = True,
        on_damage: OnDamage = "refuse",
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
        poll_seconds: float = 0.05,
        read_ahead: int = DEFAULT_BYTES,
        cache: StorePath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Open a stream at the beginning of the sequence.

        Args:
            store: directory of the store; or the address of a bucket, ``s3://bucket/prefix``.
            stream: name of the stream, such as ``raw-text.train``.
            batch_size: samples of this rank in each batch; or a schedule, ``[(0, 4), (1000, 8)]``, from which step on
                how many.
            sequence_length: tokens of each sample: a divisor of the stream's, ``block_tokens - 1``; None: these. Or a
                schedule, ``[(0, 512), (10_000, 1024)]``, where steps of a smaller one have each sample as several rows.
            seed: of the order, any number of 64 bits; from 2**63 on, the same as that of its bits with a sign.
            rank: this process among those that get different data, from 0; None, with ``world_size``: as in the process
                group, else as RANK and WORLD_SIZE say, else 0 and 1.
            world_size: how many these are.
            device: where the tensors go; for CUDA through pinned memory, without blocking.
            shuffle: False takes the samples of each era by partition and number.
            in_order: with the packing ``chunks``: give the segments of ``batch_size`` chunks in consecutive steps, so
                that a row of consecutive batches is consecutive text; ``batch.begins`` says where new chunks begin.
            eras: which eras to take, ``range(first, stop)``; None: all, as they come, up to the stream's end marker.
            passes: how often to go through them, each time in another order.
            drop_last: False: what is too little for a step is a last one, as for evaluations. All ranks make it, and
                have equal parts, to one sample: where there are fewer samples than ranks, some get an empty batch.
            prefetch: batches whose copies to a CUDA device are begun ahead of the one that is delivered, 1024 at most.
            mask_loss: set y to -100, which cross entropy ignores, where x and y are of other documents or y is padding.
            documents: send the documents of each batch along to other processes, for ``batch.documents()`` there.
            as_dict: give dictionaries, for ``model(**batch)`` of Transformers: ``input_ids`` and ``labels``, which such
                models shift, so both are x and the last of y; ``attention_mask`` and ``position_ids``. With
                ``documents``, positions begin in each document, and there is no mask: models then keep them apart.
            loss_weight: what the loss of this stream's rows is to count in a `Mixture`, as ``batch.loss_weights``.
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
            cache: of a bucket: a folder on a disk of this host, for the segments of the era that is read and the next.
                All ranks of a host share one; what nobody reads any more is removed.
            cache_bytes: most bytes of tokens in it, an era's at least; None: whatever these eras have.

        Raises:
            StoreError: the store holds no such stream.
            BucketError: the bucket holds no such stream, or does not answer.
            DiskError: a file may not be read, or its disk fails.
            InputError: an argument cannot be used.
            DamagedError: the files are damaged.
        """
        most = None if cache_bytes is None else arguments.whole("cache_bytes", cache_bytes, 1, "bytes")
        fetched = open_cache(store, arguments.stream_name("stream", stream), cache, most)
        self._store = store_directory(store) if fetched is None else fetched.path
        self._info = info = read_stream(self._store, arguments.stream_name("stream", stream))
        self._tokenizer = StoredTokenizer(self._store, info)
        lengths = info.block_tokens - 1 if sequence_length is None else sequence_length
        phases = Phases(batch_size, lengths, rank, world_size, worker)
        length = phases.length
        sequence = SequenceId(
            stream=stream,
            fingerprint=info.fingerprint.hex(),
            sequence_length=length,
            seed=arguments.seed_of("seed", seed),
            shuffle=arguments.flag("shuffle", shuffle),
            eras=arguments.eras_of("eras", eras),
            passes=arguments.whole("passes", passes, 1, "passes"),
            in_order=arguments.flag("in_order", in_order),
        )
        drop_last = arguments.flag("drop_last", drop_last)
        if sequence.in_order:
            phases.require_one(drops_last=drop_last)
        prefetch, read_ahead = arguments.prefetch_of(prefetch), arguments.whole("read_ahead", read_ahead, 0, "bytes")
        masks, named = arguments.outputs_of(mask_loss, as_dict, widen, in_order=sequence.in_order)
        skips = arguments.choice("on_damage", on_damage, ("refuse", "skip")) == "skip"
        check, sends = arguments.flag("check", check), arguments.flag("documents", documents)
        inputs = partial(Batch._make_inputs, masks=masks, apart=sends)
        complete = inputs if named else Batch._mask if masks else None
        rows = RowOptions(sends, arguments.loss_weight_of("loss_weight", loss_weight))
        store_wait = StoreWait(arguments.timeout_of(timeout), arguments.seconds("poll_seconds", poll_seconds))
        stop = None if stop is None else arguments.function_of("stop", stop)
        target = device_of(device)
        reachable = ReachableStream((self._store, stream))
        self._views = views = count_views(info, length)
        if sequence.in_order and not isinstance(packing := packing_in(info), Chunks):
            raise InputError(
                f"in_order is True, and {info.name} is packed as {type(packing).__name__.lower()!r}, whose blocks are "
                'no chunks of one document: give False, or mill a stream with packing = {name = "chunks"}'
            )
        with reachable:
            self._trainable = TrainableSamples(
                self._store, info, sequence, views, check=check, on_damage=on_damage, whole=True
            )
        if fetched is not None:
            fetched.end_with(self._trainable)
            self._trainable.fetch = fetched.has
        ahead = EraReadAhead(self._trainable, most_bytes=read_ahead, documents=masks or named) if read_ahead else None
        self._reader = RowReader(self._trainable, phases.first, length, ahead, skip=skips, options=rows)
        given = (mask_loss, widen, check, on_damage, sends, named)
        self._options = (str(target), prefetch, *given, str(batch_size), str(phases.lengths))
        """Options that the streams of a mixture must have in common."""
        prefetch = prefetch if target.type == "cuda" else 0
        slots = prefetch + 2  # one is filled while the one before it, and those ahead, are on their way
        stagings = Stagings(phases, info.dtype, target, widen=widen, slots=slots, complete=complete)
        row_bytes = (length + 1) * info.dtype.itemsize
        finish = Batch._inputs if named else None
        delivery = Delivery(phases, stagings, store_wait, stop, prefetch, row_bytes, finish, skips)
        self._keeps_last = not drop_last
        """Whether what is too little for a step is one."""
        super().__init__(delivery, reachable, Position.beginning(sequence, phases.first.global_batch))

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
        """Return the same; the end is known where all eras that were named are in the store, or the stream has ended.

        Steps that were made with other batches count as they were made.
        """
        if (total := self._trainable.content.total()) is None:
            raise TypeError(
                f"how many batches {self._info.name} has is not known, for its end is not in {self._store}: name eras "
                f"that are there (eras=range(0, 8)), close the stream ({ending(self._store, self._info.name)}), or "
                "leave len() out"
            )
        end = replace(self._position, sample=max(self._position.end(total, self._views), 0))
        return end.step + (self._keeps_last and end.before(end.step).sample < total)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved, by any rank of a run with any number of ranks and any batch size.

        A state that is ahead of the store is waited for; whether it is one over the store's content, the iteration then
        says before its first batch. An old state, which names no content, is taken with a warning. Raises InputError
        where it is no state, or one of another sequence of samples: another stream, fingerprint, seed, sequence length
        or choice of eras; or one of a run over other content; DamagedError where the eras are damaged.
        """
        state = arguments.state_of(state_dict, {"format"}, "what state_dict() of Batches returned")
        position = self._trainable.content.accept(Position.from_dict(state, self._position.sequence))
        ranks = self._ranks
        if (
            (segments := position.segments(self._views)) is not None
            and segments.global_batch != ranks.global_batch
            and segments.start(position.sample) != position.sample
        ):
            raise InputError(
                f"batch_size is {ranks.batch_size} and world_size {ranks.world_size}, so a step takes "
                f"{ranks.global_batch} samples, but the state is one amid chunks that are read {segments.global_batch} "
                "side by side: give as many until they are through, or a state from where `batch.begins` is True for "
                "the next batch"
            )
        self._go_on(position, state.get("lengths"))

    def _reads(self) -> list[tuple[TrainableSamples, int]]:
        return [(self._trainable, self._position.after(self._made).sample)]

    def _with_content(self, state: dict[str, Any]) -> dict[str, Any]:
        return state | {"content": self.state_dict()["content"]}

    def _states(self) -> StateAfter:
        begin, pin, told = self._position, self._trainable.content.pin, self._told_lengths()
        end = self._trainable.places.total if self._keeps_last else lambda: None  # not self, which batches would keep
        return lambda step: pin(begin.before(step + 1).up_to(end())).to_dict() | told

    def _end(self) -> int | None:
        return self._trainable.places.total() if self._keeps_last else None

    def _release(self) -> None:
        self._reader._ahead, self._reader._tables = None, {}
        with self._trainable.lock:
            self._trainable.readers.clear()

    def _looks(self) -> Iterator[Found | None]:
        walk, begin = self._walk(), self._position
        segments = begin.segments(self._views)
        while True:
            _, self._reader.ranks, steps = walk.ahead()
            agrees = self._trainable.content.compare(begin)  # else the state is ahead of the store
            chunk = self._reader.read(walk.sample, steps, segments) if agrees else None
            if chunk is None and self._is_end(begin, walk.sample, self._reader.ranks):
                left = (self._end() or 0) - walk.sample - self._reader.ranks.worker * self._reader.ranks.global_batch
                if left <= 0:
                    return
                chunk = self._reader.read_last(walk.sample, left)
            if chunk is None:
                yield None
                continue
            yield walk.found(chunk)
            walk.made(chunk.steps)

    def _is_end(self, begin: Position, sample: int, ranks: Ranks) -> bool:
        """Whether no step of this process comes after ``sample``."""
        total = self._trainable.places.total()
        if total is None:
            return False
        ahead = ranks.turn - ranks.global_batch  # a worker's turn may begin so far behind
        if begin.sample - ahead > total:
            raise InputError(
                f"the state stands at sample {begin.sample}, but these eras of {self._info.name} have {total} in all "
                "passes: name the eras that it was saved with, or more; or skip fewer steps"
            )
        ends = begin.end(total, self._views)
        if not begin.sample and ends < (1 if self._keeps_last else ranks.global_batch):
            raise arguments.too_large(ranks, begin.sequence, total)
        return not ranks.steps_in(ends - sample)

    def _awaited(self) -> Awaited:
        return self._awaited_at(self._position.after(self._made + 1).up_to(self._end()).sample - 1)

    def _awaited_at(self, sample: int) -> Awaited:
        """Say what is missing where this sample cannot be read, and what to do."""
        return awaited_era(self._trainable, self._trainable.next_era(sample))
