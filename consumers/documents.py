"""The documents in a batch: from the boundaries that are stored, never from separator ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from tokenmill.errors import InputError
from tokenmill.samples import Numbers
from tokenmill.wire.pieces import PADDING

from . import arguments

_MOST_PADDED: Final = 1 << 20
"""Documents to pad to, 4 MiB of entries; a batch of more tokens can have as many as these."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Which tokens belong together; all tensors are on the batch's device.

    A document here is its part in one row: it begins again in each. Padding is a document that counts for no loss.
    """

    document_ids: torch.Tensor
    """``[batch, sequence_length]``, int64: the number in the row of the document of each token of x; -1: padding."""
    position_ids: torch.Tensor
    """``[batch, sequence_length]``, int64: the place of each token of x in its document's part, from 0."""
    cu_seqlens: torch.Tensor
    """``[documents + 1]``, int32: where documents begin in x laid end to end, and its length: for varlen attention."""
    max_seqlen: int
    """Tokens of the longest of them."""
    loss_mask: torch.Tensor
    """``[batch, sequence_length]``, bool: whether x and y are of one document, which is no padding."""

    def attention_mask(self) -> torch.Tensor:
        """Return ``[batch, 1, sequence_length, sequence_length]``, bool: whether a token (row) may see another.

        Those before it in its document, and itself: for ``scaled_dot_product_attention(..., attn_mask=…)``. Its size is
        the square of the length; where that matters, take ``cu_seqlens`` or a block mask of ``document_ids``.
        """
        same = self.document_ids[:, :, None] == self.document_ids[:, None, :]
        return same.tril()[:, None]

    def padded_cu_seqlens(self, documents: int) -> torch.Tensor:
        """Return ``cu_seqlens`` with ``documents + 1`` entries, the last repeated, so that shapes stay the same.

        Raises:
            InputError: there are more documents; or ``documents`` is no whole number, or above a million and the tokens
                of x.

        """
        most = max(self.document_ids.numel(), _MOST_PADDED)
        missing = arguments.whole("documents", documents, 0, "documents", most) + 1 - len(self.cu_seqlens)
        if missing < 0:
            there = len(self.cu_seqlens) - 1
            raise InputError(f"documents is {documents}, but this batch has {there} of them: give {there} or more")
        return torch.cat([self.cu_seqlens, self.cu_seqlens[-1:].expand(missing)])


def documents_of(
    pieces: Sequence[npt.NDArray[np.void]], views: Numbers, length: int, device: torch.device
) -> Documents:
    """Return the documents of rows, each a view of a block with these pieces (`tokenmill.wire.pieces.PIECE`)."""
    shape = (len(pieces), length + 1)
    begins, padding = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for row, (found, view) in enumerate(zip(pieces, views.tolist(), strict=True)):
        starts = found["start"].astype(np.int64) - view * length
        begins[row, starts[(starts > 0) & (starts <= length)]] = True
        stops = np.append(starts[1:], length + 1)
        for index in np.flatnonzero(found["position"] == PADDING).tolist():
            padding[row, max(int(starts[index]), 0) : max(int(stops[index]), 0)] = True
    ids = np.cumsum(begins, axis=1)
    first = begins[:, :-1].copy()
    first[:, 0] = True
    columns = np.broadcast_to(np.arange(length), first.shape)
    positions = columns - np.maximum.accumulate(np.where(first, columns, 0), axis=1)
    bounds = np.append(np.flatnonzero(first), first.size).astype(np.int32)
    mask = (ids[:, 1:] == ids[:, :-1]) & ~padding[:, 1:]
    return Documents(
        document_ids=torch.from_numpy(np.where(padding, -1, ids)[:, :-1].astype(np.int64)).to(device),
        position_ids=torch.from_numpy(positions.astype(np.int64)).to(device),
        cu_seqlens=torch.from_numpy(bounds).to(device),
        max_seqlen=int(np.diff(bounds).max(initial=0)),
        loss_mask=torch.from_numpy(mask).to(device),
    )
