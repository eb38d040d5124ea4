"""From token ids on the host to `x` and `y` on the device."""

from typing import Final

import numpy as np
import torch

from .rows import Rows

_SLOTS: Final = 2
"""Host buffers: one is filled while copies of the other to the device are under way."""

_CARRIERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Torch dtypes of the same width as the tokens'. Torch hardly computes in its own uint16 and uint32."""


class Staging:
    """Host buffers of ``[rows, columns]`` tokens, several batches each; for CUDA they are pinned.

    Tokens travel to a device in the width that they have on disk, one batch with one copy that does not block, and are
    widened there.
    """

    def __init__(self, rows: int, columns: int, dtype: "np.dtype[np.unsignedinteger]", device: torch.device) -> None:
        self._device = device
        self._dtype = dtype
        self._on_cuda = device.type == "cuda"
        slots = _SLOTS if self._on_cuda else 1  # what goes elsewhere has been copied when `to_device` returns
        carrier = _CARRIERS[dtype.itemsize]
        self._slots = [torch.empty((rows, columns), dtype=carrier, pin_memory=self._on_cuda) for _ in range(slots)]
        self._rows: list[Rows] = [slot.numpy().view(dtype) for slot in self._slots]
        self._copied = [
            torch.cuda.Event() if self._on_cuda else None  # type: ignore[no-untyped-call]
            for _ in self._slots
        ]
        self._current = 0

    def host_rows(self) -> Rows:
        """Return the buffer from which `to_device` sends from now on, once its last copies have ended."""
        self._current = (self._current + 1) % len(self._slots)
        copied = self._copied[self._current]
        if copied is not None:
            copied.synchronize()
        return self._rows[self._current]

    def to_device(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Send rows of the buffer; return ``x = rows[:, :-1]`` and ``y = rows[:, 1:]``, int64 and contiguous.

        On CUDA the copy may still be under way; work on the current stream comes after it.
        """
        if not self._on_cuda:
            return self.widened(self._rows[self._current][start:stop])
        tokens = self._slots[self._current][start:stop].to(self._device, non_blocking=True)
        copied = self._copied[self._current]
        if copied is not None:
            copied.record(torch.cuda.current_stream(self._device))
        return self._widen(tokens[:, :-1]), self._widen(tokens[:, 1:])

    def widened(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x and y of any rows on the host, copied, on the device."""
        x, y = (torch.from_numpy(part.astype(np.int64, order="C")) for part in (rows[:, :-1], rows[:, 1:]))
        return x.to(self._device), y.to(self._device)

    def _widen(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens as int64; what looked negative in the carrier's dtype gets its upper bits back."""
        wide = tokens.to(torch.int64, memory_format=torch.contiguous_format)
        return wide if tokens.dtype == torch.uint8 else wide.bitwise_and_((1 << 8 * self._dtype.itemsize) - 1)
