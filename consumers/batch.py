"""One rank's part of one step: tensors, what is known of their rows, and the same as a dictionary for models.

The documents in it are from the boundaries that are stored, never from separator ids.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask

from tokenmill.errors import InputError
from tokenmill.samples.sequence import Numbers, Samples
from tokenmill.samples.tracing import Source
from tokenmill.store import Pieces
from tokenmill.wire.pieces import PADDING

from . import arguments
from .sample_lookup import Chunk, Rows
from .transfer import Sent, Staged, to_device


class BatchDocuments:
    """Which tokens belong together; all tensors are on the batch's device, and each is made when it is first asked for.

    A document here is its part in one row: it begins again in each. Padding is a document that counts for no loss.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        stretches: "_Stretches",
        device: torch.device,
        sources: Callable[[], list[list[Source]]] | None = None,
    ) -> None:
        """Take the stretches of documents and padding that fill rows of this shape; see `documents_of`, `from_ids`."""
        self._shape = shape
        self._stretches = stretches
        self._device = device
        self._sources = sources

    @classmethod
    def from_ids(cls, document_ids: torch.Tensor) -> "BatchDocuments":
        """Return the documents of rows whose ids a loader has put together, as those of `EraDataset` with documents.

        What the last token of y belongs to is not known here: `loss_mask` has it as one of the last document of x.
        Raises InputError where they are no tensor ``[batch, sequence_length]`` of whole numbers.
        """
        given: Any = document_ids
        whole = isinstance(given, torch.Tensor) and given.dtype in {torch.int8, torch.int16, torch.int32, torch.int64}
        if not whole or given.ndim != 2:  # noqa: PLR2004 - rows of tokens
            raise InputError(
                f"document_ids is {arguments.shown(document_ids)}: give a tensor [batch, sequence_length] of whole "
                "numbers, such as the document_ids of a batch"
            )
        ids = document_ids.cpu().numpy()
        rows, length = ids.shape
        first = np.ones(ids.shape, np.bool_)
        np.not_equal(ids[:, 1:], ids[:, :-1], out=first[:, 1:])
        begins = np.flatnonzero(first)
        ends_row = np.append(begins[1:], ids.size) % max(length, 1) == 0
        found = _Stretches(begins, begins // max(length, 1), ids.reshape(-1)[begins] < 0, ends_row)
        return cls((rows, length), found, document_ids.device)

    @cached_property
    def document_ids(self) -> torch.Tensor:
        """``[batch, sequence_length]``, int64: the number in its row of each token's document; -1: padding."""
        ids = np.where(self._stretches.padding, -1, self._numbers)
        return self._to_device(self._spread(ids))

    @cached_property
    def position_ids(self) -> torch.Tensor:
        """``[batch, sequence_length]``, int64: the place of each token of x in its document's part, from 0."""
        begins = self._spread(self._stretches.begins)
        return self._to_device(np.subtract(_places(begins.size).reshape(self._shape), begins, out=begins))

    @cached_property
    def cu_seqlens(self) -> torch.Tensor:
        """``[documents + 1]``, int32: where documents begin in x laid end to end, and its length: varlen attention."""
        return self._to_device(self._bounds.astype(np.int32))

    @cached_property
    def max_seqlen(self) -> int:
        """Tokens of the longest of them."""
        return int(self._lengths.max(initial=0))

    @cached_property
    def loss_mask(self) -> torch.Tensor:
        """``[batch, sequence_length]``, bool: whether x and y are of one document, which is no padding."""
        mask = self._spread(~self._stretches.padding).reshape(-1)
        mask[self._bounds[1:][~self._stretches.goes_on] - 1] = False
        return self._to_device(mask.reshape(self._shape))

    @cached_property
    def fields(self) -> list[dict[int, Mapping[str, Any]]]:
        """Of each row, by numbers as in `document_ids`: the fields of the documents' records that the stream carries.

        Raises InputError, StoreError or DamagedError as in ``Batch.sources``, which has ids and offsets, too.
        """
        if self._sources is None:
            raise InputError("what was made of document_ids knows no fields: ask batch.documents() or batch.sources()")
        length = self._shape[1]
        numbers = self._spread(self._numbers)
        return [
            {int(row[source.start]): source.fields for source in sources if source.start < length}
            for row, sources in zip(numbers, self._sources(), strict=True)
        ]

    def attention_mask(self) -> torch.Tensor:
        """Return ``[batch, 1, sequence_length, sequence_length]``, bool: whether a token (row) may see another.

        Those before it in its document, and itself: for ``scaled_dot_product_attention(..., attn_mask=…)``. Its size is
        the square of the length; where that matters, take `block_mask` or `cu_seqlens`.
        """
        ids = self.document_ids
        return (ids[:, :, None] == ids[:, None, :]).tril()[:, None]

    def block_mask(self, block_size: int = 128) -> BlockMask:
        """Return the same for ``flex_attention(q, k, v, block_mask=…)``, for any number of heads.

        What ``create_block_mask`` makes of the documents, without looking at all pairs of tokens: from where documents
        begin, it is known which pairs of blocks of ``block_size`` tokens see each other not at all, in part or wholly.
        Raises InputError where ``block_size`` is no whole number of tokens.
        """
        size = arguments.whole("block_size", block_size, 1, "tokens", 1 << 16)
        length = self._shape[1]
        numbers = self._spread(self._numbers.astype(np.int32))
        first = numbers[:, ::size]
        last = numbers[:, np.minimum(np.arange(size, length + size, size), length) - 1]
        seen = np.tril(last[:, None, :] >= first[:, :, None])
        inside = np.tril(first[:, None, :] == last[:, :, None], 0 if size == 1 else -1)
        if length % size:
            inside[:, -1] = False  # its rows behind the end see nothing
        owners = self._to_device(numbers)

        def mask_mod(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (query >= key) & (owners[row, query] == owners[row, key])

        partly, wholly = (self._ordered(blocks) for blocks in (seen & ~inside, inside))
        return BlockMask.from_kv_blocks(
            *partly, *wholly, BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=(length, length)
        )

    def padded_cu_seqlens(self, documents: int) -> torch.Tensor:
        """Return ``cu_seqlens`` with ``documents + 1`` entries, the last repeated, so that shapes stay the same.

        Raises InputError where there are more documents; or ``documents`` is no whole number, or above a million and
        the tokens of x.
        """
        most = max(self._shape[0] * self._shape[1], 1 << 20)  # in 4 MiB of entries
        missing = arguments.whole("documents", documents, 0, "documents", most) + 1 - len(self.cu_seqlens)
        if missing < 0:
            there = len(self.cu_seqlens) - 1
            raise InputError(f"documents is {documents}, but this batch has {there} of them: give {there} or more")
        return torch.cat([self.cu_seqlens, self.cu_seqlens[-1:].expand(missing)])

    @cached_property
    def _bounds(self) -> Numbers:
        bounds = np.empty(len(self._stretches.begins) + 1, np.int64)
        bounds[:-1] = self._stretches.begins
        bounds[-1] = self._shape[0] * self._shape[1]
        return bounds

    @cached_property
    def _lengths(self) -> Numbers:
        return self._bounds[1:] - self._bounds[:-1]

    @cached_property
    def _numbers(self) -> Numbers:
        """The number in its row of each stretch, padding counted as well: these never fall along a row."""
        rows = self._stretches.rows
        counts = np.bincount(rows, minlength=self._shape[0])
        return np.arange(len(rows)) - (counts.cumsum() - counts)[rows]

    def _spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values.repeat(self._lengths).reshape(self._shape)

    def _ordered(self, blocks: npt.NDArray[np.bool_]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how many key blocks each query block has, and their numbers first: as a block mask has them."""
        counts = blocks.sum(axis=-1, dtype=np.int32)[:, None]
        order = np.argsort(~blocks, axis=-1, kind="stable").astype(np.int32)[:, None]
        return self._to_device(counts), self._to_device(order)

    def _to_device(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return to_device(values, self._device)


class _Stretches(NamedTuple):
    """The parts of documents and of padding that fill rows, in their order; an entry for each."""

    begins: Numbers
    """Where it begins in x laid end to end."""
    rows: Numbers
    padding: npt.NDArray[np.bool_]
    goes_on: npt.NDArray[np.bool_]
    """Whether the token after its last one in x, the last of y, is of it, too."""


@lru_cache(maxsize=2)
def _places(count: int) -> Numbers:
    """Return the numbers of so many tokens: a batch has as many as the one before."""
    return np.arange(count)


def documents_of(
    pieces: Pieces,
    views: Numbers,
    length: int,
    device: torch.device,
    *,
    sources: Callable[[], list[list[Source]]],
    more: int = 0,
) -> BatchDocuments:
    """Return the documents of rows, each a view of a block with these pieces, and so many tokens more."""
    counts = pieces.counts
    rows = np.arange(len(counts)).repeat(counts)
    starts = pieces.rows["start"].astype(np.int64)
    if views.any():
        starts -= (views * length)[rows]
    length += more
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    stops[counts.cumsum() - 1] = length + 1  # where the block goes on, the row does not
    kept = (stops > 0) & (starts < length)
    rows, starts, stops = rows[kept], np.maximum(starts[kept], 0), stops[kept]
    padding = pieces.rows["position"][kept] == PADDING
    found = _Stretches(rows * length + starts, rows, padding, stops > length)
    return BatchDocuments((len(counts), length), found, device, sources)


IGNORED: Final = -100
"""What no loss is computed of: the default ``ignore_index`` of torch's cross entropy, and of Transformers."""


def _tell_use(batch: Any) -> None:
    told, batch._on_use = batch._on_use, None
    if told is not None:
        told(batch)


class ModelInputs(dict[str, torch.Tensor]):
    """The tensors of one rank in one step, by the names that models of Transformers have for them.

    It can be pickled, pinned and sent to a device, and keeps what else it knows.
    """

    step: int
    """The number of the step."""
    streams: tuple[str, ...]
    """The name of the stream of each row; in a `Mixture`, the name that it has there."""
    loss_weights: torch.Tensor
    """As of a `Batch`."""
    _on_use: "Callable[[ModelInputs], None] | None" = None
    """Called once, when a tensor is first asked for."""
    _others_on_use: "Callable[[ModelInputs], None] | None" = None
    """The same, for the process that this is sent to."""
    _find_state: Callable[[], dict[str, Any]]

    @cached_property
    def state(self) -> dict[str, Any]:
        """The state once all steps up to this one, and no later one, were trained on; the same on every rank.

        Nothing is computed before it is asked for.
        """
        return self._find_state()

    def __repr__(self) -> str:
        ids = super().__getitem__("input_ids")
        name = f"{type(self).__name__}(step={getattr(self, 'step', None)}, input_ids {list(ids.shape)}"
        return f"{name} on {ids.device})"

    def __getitem__(self, name: str) -> torch.Tensor:
        _tell_use(self)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:  # without it, ``**`` would take the tensors unseen
        return super().__iter__()

    def items(self) -> Any:
        """Return names and tensors."""
        _tell_use(self)
        return super().items()

    def values(self) -> Any:
        """Return the tensors."""
        _tell_use(self)
        return super().values()

    @property
    def label_tokens(self) -> torch.Tensor:
        """How many labels count for a loss: of rows of tokens, all but the first of each, which no model predicts."""
        labels = super().__getitem__("labels")
        return (labels[:, 1:] != IGNORED).sum() if labels.ndim > 1 else torch.tensor(len(labels), device=labels.device)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return this batch with its tensors on a device; it is not used by that."""
        return self._with({name: one.to(device, non_blocking=non_blocking) for name, one in super().items()})

    def pin_memory(self) -> Self:
        """Return this batch with its tensors in pinned memory."""
        return self._with({name: one.pin_memory() for name, one in super().items()})

    def _with(self, tensors: Mapping[str, torch.Tensor]) -> Self:
        made = type(self)(tensors)
        made.__dict__ |= self.__dict__
        return made

    def __getstate__(self) -> dict[str, Any]:
        found = {"state": self.state} if "_find_state" in self.__dict__ else {}
        return {name: value for name, value in self.__dict__.items() if name != "_find_state"} | found

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values | {"_on_use": values.get("_others_on_use")})


class XY(NamedTuple):
    """Tokens, and the next token of each: int64, of one shape."""

    x: torch.Tensor
    y: torch.Tensor


class ContextPart(NamedTuple):
    """A part of each row, for one of the processes that share a row."""

    x: torch.Tensor
    y: torch.Tensor
    position_ids: torch.Tensor
    """``[rows, columns]``, int64: the place of each token in its row."""
    columns: torch.Tensor
    """The same of one row, to take the part of what else a batch has: ``documents.position_ids[:, part.columns]``."""


StateAfter: TypeAlias = Callable[[int], dict[str, Any]]
"""Returns a run's state once all steps up to one were trained on; raises as `UsedContent.pin`."""


class _Carried(NamedTuple):
    """What a batch brings along from the process that made it."""

    streams: tuple[str, ...]
    samples: Samples
    loss_weights: npt.NDArray[np.float32]
    pieces: Pieces | None


@dataclass(slots=True, eq=False)
class Batch:
    """The samples of one rank in one step; ``x, y = batch`` works, and ``len(batch)`` says how many samples these are.

    It can be pickled, and torch's loaders can pin it and frameworks send it to a device: `state`, `step` and `samples`
    stay with it.
    """

    _sent: Sent
    step: int
    """The number of the step, counted through all runs that went on from each other's state."""
    _chunk: Chunk | _Carried
    _start: int
    """Which of the chunk's samples is the first one."""
    _state_after: StateAfter | None
    """None: it belongs to no run."""
    _on_use: Callable[["Batch"], None] | None = None
    """Called once, when x or y is first asked for."""
    _others_on_use: Callable[["Batch"], None] | None = None
    """The same, for the process that this batch is sent to."""

    def __repr__(self) -> str:
        x = self._x()
        streams = ", ".join(map(repr, dict.fromkeys(self.streams)))
        return f"Batch({streams}, step={self.step}, x and y {list(x.shape)} of {x.dtype} on {x.device})"

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.x
        yield self.y

    def __len__(self) -> int:
        return len(self._sent.x if isinstance(self._sent, Staged) else self._sent)

    @property
    def x(self) -> torch.Tensor:
        """Tokens, ``[batch_size, sequence_length]``, int64 (without ``widen``: of the stored dtype), on the device.

        With ``on_damage="skip"``, rows whose blocks are damaged are missing.
        """
        if self._on_use is not None:
            _tell_use(self)
        return self._sent.x if isinstance(self._sent, Staged) else torch.from_numpy(self._sent[:, :-1])

    @property
    def y(self) -> torch.Tensor:
        """The next tokens, of the shape and dtype of x: ``y[i, j]`` follows ``x[i, j]``; -100 where masked."""
        if self._on_use is not None:
            _tell_use(self)
        return self._sent.y if isinstance(self._sent, Staged) else torch.from_numpy(self._sent[:, 1:])

    @property
    def label_tokens(self) -> torch.Tensor:
        """How many tokens of y count for a loss, all that are not masked: int64, of no dimension, on the device.

        A mean over none is NaN, and means over few weigh too much: divide sums by the label tokens of all ranks.
        """
        y = self._y()
        return (y != IGNORED).sum() if y.dtype == torch.int64 else torch.tensor(y.numel(), device=y.device)

    @property
    def state(self) -> dict[str, Any]:
        """The state of the run once all steps up to this one, and no later one, were trained on.

        What ``Batches.state_dict`` says where nothing was delivered behind this batch. The same on every rank, and
        cheap: nothing is computed before it is asked for. To save it is right however far a framework reads ahead.
        """
        if self._state_after is None:
            raise InputError("this batch belongs to no run: take one that Batches or StepDataset gave")
        return self._state_after(self.step)

    @property
    def rows(self) -> Rows:
        """The tokens as they are stored, on the host: ``[batch_size, sequence_length + 1]``, for numpy and JAX.

        Of the stream's dtype: uint8, uint16 or uint32. Raises InputError where they were widened, or sent to a device.
        """
        if self._on_use is not None:
            _tell_use(self)
        if isinstance(self._sent, Staged):
            raise InputError("this batch was widened or sent to a device: open Batches on the CPU, with widen=False")
        return self._sent

    @property
    def streams(self) -> tuple[str, ...]:
        """The name of the stream of each row; in a `Mixture`, the name that it has there."""
        if isinstance(self._chunk, _Carried):
            return self._chunk.streams
        return self._chunk.streams(self._start, self._start + self._chunk.batch_size)

    @property
    def loss_weights(self) -> torch.Tensor:
        """What the loss of each row counts, the ``loss_weight`` of its stream: float32, ``[rows]``, on the device."""
        return to_device(self._loss_weights(), self._x().device)

    @property
    def samples(self) -> Samples:
        """Where each row comes from: partition, block, and which view of it; three arrays, ``[rows]``, int64."""
        if isinstance(self._chunk, _Carried):
            return self._chunk.samples
        return self._chunk.places(self._start, self._start + self._chunk.batch_size)

    @property
    def begins(self) -> bool:
        """Whether all rows begin their blocks: with ``in_order=True``, whether chunks begin and a memory is emptied."""
        return not self.samples.views.any()

    def documents(self) -> BatchDocuments:
        """Return which tokens belong to which document, from the boundaries that the store keeps.

        They are read for several batches at once. Works as long as the store holds the blocks; where another process
        made this batch, with ``documents=True`` there.

        Raises:
            InputError: the blocks were retired since; or another process made this batch, and sent none along.
            StoreError: the store is not there any more.
            DamagedError: the document table is damaged.
        """
        return self._documents()

    def part(self, rank: int, size: int, *, zigzag: bool = False) -> ContextPart:
        """Return one of ``size`` equal parts of each row, for a process of a context-parallel group.

        With ``zigzag``, of twice as many the one with this number and the one as far from the end: under a causal mask,
        that is as much work for each rank.

        Raises:
            InputError: there is no such part, or rows are not divided by them.
        """
        size = arguments.whole("size", size, 1, "parts")
        rank = arguments.whole("rank", rank, 0, "parts before this one", size - 1)
        x, y = self.x, self.y
        pieces, length = (2 * size if zigzag else size), x.shape[1]
        if length % pieces:
            raise InputError(
                f"size is {size}, and rows have {length} tokens, which are not divided by {pieces}: give another, or "
                "open Batches with another sequence_length"
            )
        numbers = [rank, pieces - 1 - rank] if arguments.flag("zigzag", zigzag) else [rank]
        cuts = [slice(number * length // pieces, (number + 1) * length // pieces) for number in numbers]
        columns = torch.cat([torch.arange(cut.start, cut.stop, device=x.device) for cut in cuts])
        x, y = (torch.cat([tokens[:, cut] for cut in cuts], dim=1) for tokens in (x, y))
        return ContextPart(x, y, columns.expand(len(x), -1), columns)

    def sources(self) -> list[list[Source]]:
        """Return, for each row, the Kafka records that its tokens came from; costs nothing before it is called.

        Raises InputError, StoreError or DamagedError as in `documents`.
        """
        return self._made_here("sources are known there alone").sources(self._start, self._x().shape[1])

    def _make_inputs(self, *, masks: bool, apart: bool) -> None:
        """Make what models take that shift their labels themselves: x and the last of y, as both.

        With ``masks``, first tokens of documents are no labels; with ``apart``, documents do not see each other.
        """
        ids = torch.cat([self._x(), self._y()[:, -1:]], dim=1)
        documents = self._documents(more=1)
        there = documents.document_ids >= 0
        labels = ids.masked_fill(~there, IGNORED)
        if masks:
            labels.masked_fill_(documents.position_ids == 0, IGNORED)
        made = {"input_ids": ids, "labels": labels}
        if apart:
            made["position_ids"] = documents.position_ids
        else:
            places = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
            made |= {"attention_mask": there.long(), "position_ids": places}
        self._staged().inputs = made | {"loss_weights": self.loss_weights}

    def _inputs(self) -> ModelInputs:
        made = ModelInputs(self._staged().inputs)
        made.step, made.streams, made.loss_weights = self.step, self.streams, made.pop("loss_weights")
        if self._state_after is not None:
            made._find_state = partial(self._state_after, self.step)
        return made

    def _documents(self, more: int = 0) -> BatchDocuments:
        if isinstance(self._chunk, _Carried):
            pieces = self._chunk.pieces or self._made_here("documents=True sends them along").pieces(0)
        else:
            pieces = self._chunk.pieces(self._start)
        x = self._x()
        return documents_of(pieces, self.samples.views, x.shape[1], x.device, more=more, sources=self.sources)

    def _mask(self) -> None:
        self._y().masked_fill_(~self.documents().loss_mask, IGNORED)

    def _staged(self) -> Staged:
        if isinstance(self._sent, Staged):
            return self._sent
        raise InputError("this batch has its rows as they are stored: open Batches with widen=True")

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return this batch with x and y on a device, as frameworks ask for it; it is not used by that."""
        x, y = self._x(), self._y()
        if x.device == torch.device(device):
            return self
        x, y = (one.to(device, non_blocking=non_blocking) for one in (x, y))
        return replace(self, _sent=Staged(x, y))

    def pin_memory(self) -> "Batch":
        """Return this batch with x and y in pinned memory, as a ``DataLoader`` with ``pin_memory=True`` asks for it."""
        return replace(self, _sent=Staged(self._x().pin_memory(), self._y().pin_memory()))

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._sent, Staged):
            tensors: tuple[torch.Tensor, torch.Tensor | None] = (self._sent.x, self._sent.y)
        else:
            tensors = (torch.from_numpy(self._sent), None)  # torch's queues have no memory shared for arrays of numpy
        pieces = self._chunk.pieces if isinstance(self._chunk, _Carried) else self._chunk.asked_pieces(self._start)
        carried = _Carried(self.streams, self.samples, self._loss_weights(), pieces)
        return _carried, (tensors, self.step, carried, self.state, self._others_on_use)

    def _loss_weights(self) -> npt.NDArray[np.float32]:
        if isinstance(self._chunk, _Carried):
            return self._chunk.loss_weights
        return self._chunk.loss_weights(self._start, self._start + self._chunk.batch_size)

    def _x(self) -> torch.Tensor:
        """Return x; that is no use. The property has this written out: a call costs a twentieth of a small batch."""
        return self._sent.x if isinstance(self._sent, Staged) else torch.from_numpy(self._sent[:, :-1])

    def _y(self) -> torch.Tensor:
        return self._sent.y if isinstance(self._sent, Staged) else torch.from_numpy(self._sent[:, 1:])

    def _made_here(self, instead: str) -> Chunk:
        if isinstance(self._chunk, _Carried):
            raise InputError(
                "this batch was made by another process, which has the store open: ask it there for its documents and "
                f"sources ({instead}; mask_loss=True masks y there), or loop over Batches, which needs no other process"
            )
        return self._chunk


def _carried(
    tensors: tuple[torch.Tensor, torch.Tensor | None],
    step: int,
    carried: _Carried,
    state: dict[str, Any],
    on_use: Callable[[Batch], None] | None,
) -> Batch:
    x, y = tensors
    sent: Sent = x.numpy() if y is None else Staged(x, y)
    return Batch(sent, step, carried, 0, lambda _: deepcopy(state), on_use)
