"""Measures a training loop, for `train_gpt.py`: its loss, its speed, and whether the model or the data holds it up."""

# ruff: noqa: INP001 - beside a script, no part of a package

import time
from typing import NamedTuple

import torch

from tokenmill.consumers import Batches, Metrics

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
    """Counts the steps of a loop over `Batches`, which know how long they were waited for."""

    def __init__(self, batches: Batches, processes: int) -> None:
        """Start the clock."""
        self.batches, self.processes = batches, processes
        self.losses: list[torch.Tensor] = []
        self.earlier = batches.metrics
        self.started = self.reported = time.monotonic()

    def add(self, loss: torch.Tensor) -> bool:
        """Count a step; return whether it is time for a report. The loss is looked at then: a look stops the GPU."""
        self.losses.append(loss.detach())
        return time.monotonic() - self.reported >= 1

    def report(self, step: int) -> Progress:
        """Say how it went since the last time."""
        loss = torch.stack(self.losses).mean().item()
        now, metrics = time.monotonic(), self.batches.metrics
        recently = waited(metrics.since(self.earlier)) / (now - self.reported)
        elapsed = now - self.started
        self.losses, self.reported, self.earlier = [], now, metrics
        return Progress(
            step=step,
            loss=loss,
            tokens_per_second=metrics.tokens * self.processes / elapsed,
            wait_share=waited(metrics) / elapsed,
            bottleneck="data" if recently > DATA_BOUND else "model",
        )


def waited(metrics: Metrics) -> float:
    """Return the seconds that the loop stood because of its data: the host, or the GPU that it feeds."""
    return max(metrics.wait_seconds, metrics.device_wait_seconds)
