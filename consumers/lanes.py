"""How tokens get from the host's memory to a device: CUDA's streams and events, behind a few calls.

What `Staging` does with them is the same with any lane, so the order of these calls is tested without a GPU.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A point in the work that was given to a lane."""

    def synchronize(self) -> None:
        """Return when the work before it is done."""

    def wait(self, stream: Any) -> None:
        """Let what is begun on a stream from now on come after that work; return at once."""


class Lane(Protocol):
    """Work on a device that goes on beside the consumer's."""

    stalled_seconds: float
    """How long the consumer's work waited at marks that were handed over, as far as that is known yet."""

    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a host buffer that the device can read while the host does something else."""

    def beside(self) -> AbstractContextManager[object]:
        """Let the work that is begun in the block go on beside the consumer's."""

    def copy(self, tokens: torch.Tensor) -> torch.Tensor:
        """Begin to copy host rows to the device."""

    def mark(self) -> Mark:
        """Mark what was begun `beside` up to now."""

    def hand_over(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> None:
        """Let the consumer's further work come after the mark, and the tensors' memory be kept until it is done."""


class CudaLane:
    """A stream of its own on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.stalled_seconds = 0.0
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        """Events around each wait that may not have ended yet."""

    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Return page-locked memory: only from there does the device copy by itself."""
        return torch.empty((rows, columns), dtype=dtype, device="cpu", pin_memory=True)

    def beside(self) -> AbstractContextManager[object]:
        """Make the lane's stream the current one."""
        return torch.cuda.stream(self._stream)

    def copy(self, tokens: torch.Tensor) -> torch.Tensor:
        """Begin one copy of contiguous rows."""
        return tokens.to(self._device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        return _record(self._stream)

    def hand_over(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> None:
        """Let the current stream wait for the event, not the host.

        The tensors were allocated on the lane's stream. Without `record_stream`, their memory would go to the next
        batch as soon as the consumer lets them go, while kernels may still have to read them.
        """
        while self._waits and self._waits[0][1].query():  # type: ignore[no-untyped-call]
            before, after = self._waits.popleft()
            self.stalled_seconds += before.elapsed_time(after) / 1e3
        current = torch.cuda.current_stream(self._device)
        before = _record(current, timed=True)
        mark.wait(current)
        self._waits.append((before, _record(current, timed=True)))
        for tensor in tensors:
            tensor.record_stream(current)


def _record(stream: torch.cuda.Stream, *, timed: bool = False) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
