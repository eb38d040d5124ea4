"""From token ids on the host to `x` and `y` on the device."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from .gathering import Rows
from .lanes import CudaLane, Lane, Mark

_SLOTS: Final = 2
"""Pinned buffers: one is filled while copies of the other to the device are under way."""

_CARRIERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Torch dtypes of the same width as the tokens'. Torch hardly computes in its own uint16 and uint32."""
_EXACT: Final = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


@dataclass(slots=True, eq=False)
class Staged:
    """A batch on its way: ``x = rows[:, :-1]``, ``y = rows[:, 1:]``; `Staging.deliver` says when they may be used."""

    x: torch.Tensor
    y: torch.Tensor
    mark: Mark | None = None
    """Behind which both are there; None: they are."""


class Stored:
    """Rows as they are stored, whose x and y are made when they are asked for: two views cost as much as 8 rows."""

    __slots__ = ("_tokens", "rows")
    mark = None

    def __init__(self, rows: Rows, tokens: torch.Tensor | None = None) -> None:
        self.rows = rows
        self._tokens = tokens

    @property
    def tokens(self) -> torch.Tensor:
        """The same as a tensor, without a copy."""
        if self._tokens is None:
            self._tokens = torch.from_numpy(self.rows)
        return self._tokens

    @property
    def x(self) -> torch.Tensor:
        """All but the last column."""
        return self.tokens[:, :-1]

    @property
    def y(self) -> torch.Tensor:
        """All but the first column."""
        return self.tokens[:, 1:]


class Staging(Protocol):
    """Buffers of ``[rows, columns]`` tokens on the host, and what is on its way from them to a device."""

    def load(self, rows: Rows) -> None:
        """Take the rows of which `send` sends from now on; whoever gave them writes to them no more."""

    def send(self, start: int, stop: int) -> Staged | Stored:
        """Send some of the rows that were loaded on their way."""

    def send_rows(self, rows: Rows) -> Staged | Stored:
        """Send any rows; they have been copied when this returns."""

    def deliver(self, staged: Staged | Stored) -> None:
        """Let x and y be used, by all work that is begun from now on."""

    @property
    def stalled_seconds(self) -> float:
        """How long a device's work stood because a batch was not there yet, as far as that is known."""


def open_staging(
    rows: int, columns: int, dtype: "np.dtype[np.unsignedinteger]", device: torch.device, *, widen: bool = True
) -> Staging:
    """Allocate the buffers for a device, where it needs some: of so many rows, the most that are loaded at once.

    x and y will be int64 and contiguous; without ``widen``, of the tokens' dtype, and views of one tensor.
    """
    if device.type == "cuda":
        return LaneStaging(rows, columns, dtype, device, widen=widen, lane=CudaLane(device))
    return HostStaging(columns, dtype, device, widen=widen)


class HostStaging:
    """Staging for the CPU, and for devices that share its memory: rows are widened on the host when they are sent."""

    stalled_seconds = 0.0

    def __init__(
        self, columns: int, dtype: "np.dtype[np.unsignedinteger]", device: torch.device, *, widen: bool
    ) -> None:
        self._device = device
        self._is_cpu = device.type == "cpu"
        self._widens = widen
        self._rows: Rows = np.empty((0, columns), dtype)

    def load(self, rows: Rows) -> None:
        """Keep the rows: what is sent may be views of them."""
        self._rows = rows

    def send(self, start: int, stop: int) -> Staged | Stored:
        """Widen some of the rows; or return views of them."""
        return self._send(self._rows[start:stop])

    def send_rows(self, rows: Rows) -> Staged | Stored:
        """Do the same with any rows, which may be written to again."""
        return self._send(rows if self._widens else rows.copy())

    def deliver(self, staged: Staged | Stored) -> None:
        """Do nothing: both are there."""

    def _send(self, rows: Rows) -> Staged | Stored:
        if not self._widens:
            return Stored(rows, None if self._is_cpu else torch.from_numpy(rows).to(self._device))
        x, y = torch.from_numpy(rows[:, :-1].astype(np.int64)), torch.from_numpy(rows[:, 1:].astype(np.int64))
        return Staged(x, y) if self._is_cpu else Staged(x.to(self._device), y.to(self._device))


class LaneStaging:
    """Staging for devices that copy by themselves (`consumers.lanes`).

    Tokens travel in the width that they have on disk, each batch with one copy out of pinned memory, and are widened on
    the device, all beside the consumer's work. A buffer is filled again only when the last copy out of it has ended.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        dtype: "np.dtype[np.unsignedinteger]",
        device: torch.device,
        *,
        widen: bool,
        lane: Lane,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._widens = widen
        self._lane = lane
        self._slots = [lane.pinned(rows, columns, _CARRIERS[dtype.itemsize]) for _ in range(_SLOTS)]
        self._rows: list[Rows] = [slot.numpy().view(dtype) for slot in self._slots]
        self._copied: list[Mark | None] = [None] * _SLOTS
        """Of each buffer, the last copy out of it."""
        self._current = 0

    @property
    def stalled_seconds(self) -> float:
        """How long the device's work stood, as far as the lane knows yet."""
        return self._lane.stalled_seconds

    def load(self, rows: Rows) -> None:
        """Fill the buffer that was filled the longest time ago, once the copies out of it have ended."""
        self._current = (self._current + 1) % _SLOTS
        copied = self._copied[self._current]
        if copied is not None:
            copied.synchronize()
        self._rows[self._current][: len(rows)] = rows

    def send(self, start: int, stop: int) -> Staged:
        """Begin a copy of rows of the buffer, and what widens them there."""
        with self._lane.beside():
            tokens = self._lane.copy(self._slots[self._current][start:stop])
            self._copied[self._current] = self._lane.mark()  # before widening: that needs the buffer no more
            x, y = self._part(tokens[:, :-1]), self._part(tokens[:, 1:])
            return Staged(x, y, self._lane.mark())

    def send_rows(self, rows: Rows) -> Staged | Stored:
        """Copy rows that are in no buffer, while the host waits."""
        wide = rows.astype(np.int64) if self._widens else rows.copy()
        tokens = torch.from_numpy(wide).to(self._device)
        return Staged(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def deliver(self, staged: Staged | Stored) -> None:
        """Let what the consumer begins from now on come after the copy; the host does not wait."""
        if staged.mark is not None:
            self._lane.hand_over(staged.mark, (staged.x, staged.y))

    def _part(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens as int64; what looked negative in the carrier's dtype gets its upper bits back."""
        if not self._widens:
            return tokens.view(_EXACT[self._dtype.itemsize])
        wide = tokens.to(torch.int64, memory_format=torch.contiguous_format)
        return wide if tokens.dtype == torch.uint8 else wide.bitwise_and_((1 << 8 * self._dtype.itemsize) - 1)
