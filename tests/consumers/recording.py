"""A model that records which samples it was trained on: its checkpoints hold them, so nothing else keeps count."""

import os
import signal
from collections.abc import Iterable
from typing import Final

import torch

_CAPACITY: Final = 1000


class Recording(torch.nn.Module):
    """A linear model; a forward pass in training records the rows that it sees, in order, in a buffer."""

    def __init__(self, sequence_length: int = 4, *, killed_at: int | None = None) -> None:
        """Begin without rows; with ``killed_at``, the pass that would record that one kills its process."""
        super().__init__()
        self._killed_at = killed_at
        self.layer = torch.nn.Linear(sequence_length, sequence_length)
        self.rows: torch.Tensor
        self.count: torch.Tensor
        self.register_buffer("rows", torch.zeros(_CAPACITY, sequence_length + 1, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.training:
            stop = int(self.count) + len(x)
            if self._killed_at is not None and stop > self._killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.rows[int(self.count) : stop, :-1] = x
            self.rows[int(self.count) : stop, -1] = y[:, -1]
            self.count.fill_(stop)
        loss: torch.Tensor = (self.layer(x / 65536) - y / 65536).square().mean()
        return loss


def rows_in(values: dict[str, torch.Tensor]) -> list[list[int]]:
    (rows,) = (value for name, value in values.items() if name.endswith("rows"))
    (count,) = (value for name, value in values.items() if name.endswith("count"))
    found: list[list[int]] = rows[: int(count)].tolist()
    return found


def train_step(model: torch.nn.Module, batch: Iterable[torch.Tensor]) -> None:
    """Train on one batch, without an optimizer: the first one of a process imports for seconds."""
    x, y = batch
    model.zero_grad()
    model(x, y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
