"""The documents in a batch: from the boundaries that are stored, never from separator ids."""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask

from tokenmill.errors import InputError
from tokenmill.samples.sequence import Numbers
from tokenmill.samples.tracing import Source
from tokenmill.store import Pieces
from tokenmill.wire.pieces import PADDING

from . import arguments
from .transfer import to_device


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
