"""Measures a training loop, for `train_gpt.py`: its loss, its speed, and whether the model or the data holds it up."""

# ruff: noqa: INP001 - beside a script, no part of a package

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from tokenmill.consumers import Batch, Batches

DATA_BOUND = 0.05  # a loop that waits for this share of its time is as fast as its data come, whatever the model


class Progress(NamedTuple):
    """How far the training is."""

    step: int
    loss: float
    """Mean over the steps since the last report, in nats for each token; of this process's samples."""
    tokens_per_second: float
    """Of all processes."""
    wait_share: float
    """Share of the time so far, 0 to 1, that was spent waiting for data."""
    bottleneck: str
    """Since the last report: data or model."""


class Meter:
    """Counts steps between two reports."""

    def __init__(self, processes: int) -> None:
        """Start the clock."""
        self.processes = processes
        self.losses: list[torch.Tensor] = []
        self.tokens = 0
        self.waited = self.waited_before = 0.0
        self.started = self.reported = time.monotonic()

    def over(self, batches: Batches) -> Iterator[Batch]:
        """Yield the batches, and note how long each was waited for."""
        rest = iter(batches)
        while True:
            begun = time.monotonic()
            batch = next(rest, None)
            self.waited += time.monotonic() - begun
            if batch is None:
                return
            yield batch

    def add(self, batch: Batch, loss: torch.Tensor) -> bool:
        """Count a step; return whether it is time for a report. The loss is looked at then: a look stops the GPU."""
        self.losses.append(loss.detach())
        self.tokens += batch.x.numel() * self.processes
        return time.monotonic() - self.reported >= 1

    def report(self, step: int) -> Progress:
        """Say how it went since the last time."""
        loss = torch.stack(self.losses).mean().item()
        now = time.monotonic()
        slower = "data" if self.waited - self.waited_before > DATA_BOUND * (now - self.reported) else "model"
        elapsed = now - self.started
        self.losses, self.reported, self.waited_before = [], now, self.waited
        return Progress(step, loss, self.tokens / elapsed, self.waited / elapsed, slower)
