"""Documents in padded batches, as models for whole texts take them: ``model(**batch)``."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tokenmill.errors import InputError
from tokenmill.samples.sequence import Numbers
from tokenmill.store.segment import Tokens

from . import arguments
from .arguments import DataRank, naming_unknown
from .batch import IGNORED, ModelInputs
from .documents import Documents
from .samplers import DocumentSampler, EraSampler
from .text import HasTokenizer
from .transfer import begin_ahead, device_of

Piece = tuple[int, int, Tokens]
"""Row, first column, and what is to be there."""


class PaddedBatch(ModelInputs):
    """``input_ids``, ``attention_mask`` and ``labels`` of whole documents."""

    indices: Numbers
    """The numbers of the documents, in the order of the rows."""


class PaddedBatches(HasTokenizer):
    """An iterable over documents in padded batches, in the order of a sampler; `loader` reads them by worker processes.

    A step takes the next ``world_size * batch_size`` documents, of which each rank gets a slice. What is too little for
    a step is left (``drop_last``). ``input_ids`` are padded on the right to the longest of the batch;
    ``attention_mask`` is 1 at tokens; ``labels`` are the documents' (int64, ``[batch_size]``), or, without any, the ids
    themselves, with -100 where padded, as models that predict the next token want them.
    """

    @naming_unknown
    def __init__(
        self,
        documents: Documents,
        sampler: DocumentSampler | None = None,
        *,
        batch_size: int,
        max_length: int | None = None,
        padding: Literal["longest", "max_length"] = "longest",
        padding_id: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = True,
        device: torch.device | str = "cpu",
        prefetch: int = 2,
    ) -> None:
        """Begin at the beginning of the sampler's sequence.

        Args:
            documents: what is read.
            sampler: their order; None: that of the eras, shuffled inside each with seed 0.
            batch_size: documents of this rank in each batch.
            max_length: tokens to which longer documents are cut; None: they are as long as they are.
            padding: "max_length" pads all batches to that.
            padding_id: what ``input_ids`` are padded with; None: the stream's.
            rank: this process among those that get different data, from 0; None, with ``world_size``: as for `Batches`.
            world_size: how many these are.
            drop_last: False: what is too little for a step is one, too; as for `Batches`.
            device: where the tensors go; for CUDA through pinned memory, without blocking.
            prefetch: batches whose copies to a CUDA device are begun ahead of the one that is delivered.

        Raises:
            InputError: an argument cannot be used, or a step takes more documents than there are.
        """
        self._documents: Documents = arguments.instance_of("documents", documents, Documents)
        self._tokenizer = self._documents._tokenizer
        chosen = EraSampler(self._documents) if sampler is None else sampler
        self._sampler: DocumentSampler = arguments.instance_of("sampler", chosen, DocumentSampler)
        if self._sampler.documents is not documents or len(self._sampler) < self._sampler.total:
            raise InputError(
                f"sampler is {self._sampler!r}, one of other documents, or of one rank among several: give one of all "
                "of these documents, and rank and world_size to PaddedBatches"
            )
        self._data_rank = DataRank.of(rank, world_size)
        self._ranks = arguments.ranks_of(batch_size, self._data_rank.rank, self._data_rank.world_size, (0, 1))
        self._max_length = (
            None if max_length is None else arguments.whole("max_length", max_length, 1, "tokens", 1 << 31)
        )
        self._is_fixed = arguments.choice("padding", padding, ("longest", "max_length")) == "max_length"
        if self._is_fixed and self._max_length is None:
            raise InputError("padding is 'max_length', without a max_length: give both, or 'longest'")
        if padding_id is None:
            padding_id, end = documents.info.recipe.get("padding"), documents.info.values["end_of_document"]
            if padding_id is None:
                padding_id = end if isinstance(end, int) else [0, *end][-1]
        self._padding_id = arguments.whole("padding_id", padding_id, 0, "an id", (1 << 32) - 1)
        self._device = device_of(device)
        ahead = arguments.prefetch_of(prefetch)
        self._prefetch = ahead if self._device.type == "cuda" else 0
        self._sample = self._step = 0
        self._turn = 0
        """Counts what makes running iterations invalid."""
        self._keeps_last = not arguments.flag("drop_last", drop_last)
        if self._sampler.total < (1 if self._keeps_last else self._ranks.global_batch):
            raise InputError(
                f"batch_size is {self._ranks.batch_size} and world_size {self._ranks.world_size}, so a step takes "
                f"{self._ranks.global_batch} documents, but there are {self._sampler.total} in all passes: give less"
            )

    def __repr__(self) -> str:
        return f"PaddedBatches({self._documents!r}, {type(self._sampler).__name__}, next step {self._step})"

    def __len__(self) -> int:
        """Return the number of steps of the whole run, those that were made included."""
        whole, rest = divmod(max(self._sampler.total - self._sample, 0), self._ranks.global_batch)
        return self._step + whole + (self._keeps_last and rest > 0)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            "PaddedBatches is no dataset for a DataLoader: loop over it, or over what its loader(num_workers=2) "
            "returns, which is a DataLoader"
        )

    def __iter__(self) -> Iterator[PaddedBatch]:
        """Yield the batches from here on, and stand behind each.

        Raises:
            InputError: the segments were retired since; or `load_state_dict`, `rewind` or another iteration came
                between.
            StoreError: the store is not there any more.
            DamagedError: a file is damaged or cut off.
        """
        self._data_rank.require()
        arguments.warn_of_workers(type(self).__name__, "take its loader(num_workers=2)")
        self._turn += 1
        turn = self._turn
        for batch in begin_ahead(self._produce(), self._prefetch):
            if batch is not None:
                self._sample, self._step = batch.state["sample"], batch.state["step"]
                yield batch
            if turn != self._turn:
                raise InputError("these PaddedBatches were set to another place meanwhile: begin a new iteration there")

    def loader(self, *, num_workers: int = 0, **options: Any) -> DataLoader[PaddedBatch]:
        """Return a ``DataLoader`` over the batches from here on, read by worker processes; on the CPU, or pinned.

        Each loop over it begins where these batches stand then: `load_state_dict` moves that, with the ``state`` of the
        last batch that was trained on. The options are those of ``DataLoader``, such as ``pin_memory=True``. Raises
        InputError where there is no such number of workers, or an option is one that is decided here.
        """
        taken = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last"} & {*options}
        if taken:
            name = min(taken)
            raise InputError(f"{name} is {arguments.shown(options[name])}: give none, for PaddedBatches decides it")
        workers = arguments.whole("num_workers", num_workers, 0, "processes", 1 << 16)
        self._sampler._between(self._sample, self._sample + 1)  # forked workers then have the order of the pass
        steps = _Steps(self)
        return DataLoader(steps, batch_size=None, sampler=_StepNumbers(self), num_workers=workers, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that were delivered: small, JSON, equal on every rank."""
        return self._state(self._sample, self._step)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved, by any rank of a run with any number of ranks and any batch size.

        Raises InputError where it is no state, or one of another sequence of documents
        (`DocumentSampler.load_state_dict`).
        """
        sample = self._sampler._sample_in(state_dict)
        state = arguments.state_of(state_dict, {"step"}, "what state_dict() of PaddedBatches returned")
        self._step = arguments.whole("step", state["step"], 0, "steps")
        self._sample = sample
        self._turn += 1

    def rewind(self) -> Self:
        """Go back to the beginning of the sequence, as for each validation."""
        self._sample = self._step = 0
        self._turn += 1
        return self

    def label_distribution(self) -> dict[Any, int]:
        """Return how many documents of each label this rank gets from here on, by name.

        Raises InputError where the documents were opened without a ``label_field``.
        """
        mine = self._numbers(self._sample, len(self) - self._step)
        wanted = self._sampler._between(self._sample, self._sampler.total)[mine - self._sample]
        return self._documents.label_distribution(wanted)

    def _state(self, sample: int, step: int) -> dict[str, Any]:
        return self._sampler._identity | {"sample": min(sample, self._sampler.total), "step": step}

    def _numbers(self, sample: int, steps: int) -> Numbers:
        """Return which documents of the sequence this rank has in so many steps from a sample on."""
        whole = min(steps, (self._sampler.total - sample) // self._ranks.global_batch)
        mine = self._ranks.samples(sample, whole)
        if whole == steps:
            return mine
        sample += whole * self._ranks.global_batch
        return np.concatenate([mine, self._ranks.samples_of_last(sample, self._sampler.total - sample)])

    def _produce(self) -> Iterator[PaddedBatch]:
        sample, step, end = self._sample, self._step, len(self)
        while steps := min(end - step, max(4096 // self._ranks.batch_size, 1)):
            yield from self._read(sample, step, steps)
            sample += steps * self._ranks.global_batch
            step += steps

    def _read(self, sample: int, step: int, steps: int) -> Iterator[PaddedBatch]:
        size = self._ranks.batch_size
        mine = self._numbers(sample, steps) - sample
        documents = self._sampler._between(sample, sample + steps * self._ranks.global_batch)[mine]
        with self._documents._reachable:
            pieces = deque(self._documents._stretches(documents, self._max_length))
        for number in range(steps):
            rows: list[Piece] = []
            first = number * size
            while pieces and pieces[0][0] < first + size:
                slot, position, tokens = pieces.popleft()
                rows.append((slot - first, position, tokens))
            batch = self._made(documents[first : first + size], rows)
            batch.step = step + number
            batch.state = self._state(sample + (number + 1) * self._ranks.global_batch, step + number + 1)
            yield batch

    def _made(self, documents: Numbers, pieces: Sequence[Piece]) -> PaddedBatch:
        lengths = self._documents.lengths[documents].astype(np.int64)
        if self._max_length is not None:
            np.minimum(lengths, self._max_length, out=lengths)
        width = self._max_length if self._is_fixed and self._max_length is not None else int(lengths.max(initial=1))
        shape = (len(documents), width)
        ids, mask = self._empty(shape), self._empty(shape)
        padded, there = ids.numpy(), mask.numpy()
        self._documents._watch.look([tokens for _, _, tokens in pieces])
        padded.fill(self._padding_id)
        for row, column, tokens in pieces:
            padded[row, column : column + len(tokens)] = tokens
        np.less(np.arange(width), lengths[:, None], out=there, casting="unsafe")
        known = self._documents.labels
        labels = self._empty(shape if known is None else documents.shape)
        if known is None:
            np.copyto(labels.numpy(), np.where(there, padded, IGNORED))
        else:
            np.take(known, documents, out=labels.numpy())
        batch = PaddedBatch({"input_ids": ids, "attention_mask": mask, "labels": labels})
        if self._device.type != "cpu":
            batch = batch.to(self._device, non_blocking=True)
        batch.indices = documents
        return batch

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=self._device.type == "cuda")


class _Steps(Dataset[PaddedBatch]):
    def __init__(self, batches: PaddedBatches) -> None:
        self._batches = batches

    def __getitem__(self, place: tuple[int, int]) -> PaddedBatch:
        sample, step = place
        with torch.inference_mode(mode=False):
            return next(self._batches._read(sample, step, 1))


class _StepNumbers:
    """Where the steps from here on begin, in the process that loops."""

    def __init__(self, batches: PaddedBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches) - self._batches._step

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self._batches._data_rank.require()  # when the first is asked for: torch ends workers that have begun
        sample, size = self._batches._sample, self._batches._ranks.global_batch
        first = self._batches._step
        for number in range(len(self)):
            yield sample + number * size, first + number
