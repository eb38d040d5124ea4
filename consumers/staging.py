"""From token ids on the host to `x` and `y` on the device."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

_SLOTS: Final = 2
"""Host buffers: one is filled while the other's copy to the device is under way."""

_CARRIERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Torch dtypes of the same width as the tokens'. Torch hardly computes in its own uint16 and uint32."""


class Staging:
    """Host buffers of ``[rows, columns]`` tokens; for CUDA they are pinned, and copies do not block.

    Tokens travel in the width that they have on disk and are widened on the device.
    """

    def __init__(self, rows: int, columns: int, dtype: "np.dtype[np.unsignedinteger]", device: torch.device) -> None:
        self._device = device
        self._dtype = dtype
        on_cuda = device.type == "cuda"
        carrier = _CARRIERS[dtype.itemsize]
        self._slots = [torch.empty((rows, columns), dtype=carrier, pin_memory=on_cuda) for _ in range(_SLOTS)]
        self._copied = [
            torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]
            for _ in range(_SLOTS)
        ]
        self._next = 0

    def host_rows(self) -> npt.NDArray[np.unsignedinteger]:
        """Return the buffer that `to_device` sends next, once its last copy has ended; fill it whole."""
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
        rows: npt.NDArray[np.unsignedinteger] = self._slots[self._next].numpy().view(self._dtype)
        return rows

    def to_device(self, rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Send the filled buffer; return ``x = rows[:, :-1]`` and ``y = rows[:, 1:]``, int64 and contiguous.

        Of a buffer that is not full, its first ``rows`` rows.

        On CUDA the copy may still be under way; work on the current stream comes after it.
        """
        copied = self._copied[self._next]
        tokens = self._slots[self._next][:rows].to(self._device, non_blocking=copied is not None)
        if copied is not None:
            copied.record(torch.cuda.current_stream(self._device))
        self._next = (self._next + 1) % _SLOTS
        return self._widen(tokens[:, :-1]), self._widen(tokens[:, 1:])

    def _widen(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens as int64; what looked negative in the carrier's dtype gets its upper bits back."""
        wide = tokens.to(torch.int64, memory_format=torch.contiguous_format)
        return wide if tokens.dtype == torch.uint8 else wide.bitwise_and_((1 << 8 * self._dtype.itemsize) - 1)
