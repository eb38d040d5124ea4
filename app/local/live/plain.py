"""A scene as one line of text."""

import time
from datetime import datetime

from .numbers import short
from .rates import Rates
from .scene import Scene, Training


def plain_line(scene: Scene, rates: Rates) -> str:
    """Return what a log file should hold every few seconds."""
    status = scene.status
    chains = status.chains.values()
    mills = [worker for worker in status.workers if worker.role == "mill"]
    parts = [
        scene.title,
        *outage(scene),
        *totals(scene, rates),
        f"lag {lag_text(status.lag)}",
        f"{sum(chain.blocks for chain in chains):,} blocks, {status.stored:,} stored",
        f"{sum(chain.segments for chain in chains):,} segments",
        f"{sum(status.eras.values()):,} eras",
        *dead_letters(scene),
        f"{sum(mill.state == 'running' for mill in mills)} of {len(mills)} mills",
    ]
    if scene.training is not None:
        parts.append(training_text(scene.training))
    return " · ".join(parts)


def outage(scene: Scene) -> list[str]:
    """Return that no broker answers, and since when; nothing while one does."""
    since = scene.status.away_since
    if since is None:
        return []
    at = datetime.fromtimestamp(since).astimezone()
    return [f"NO BROKER ANSWERS since {at:%H:%M:%S} ({max(0.0, time.time() - since):.0f} s)"]


def lag_text(lag: int | None) -> str:
    """Return a number of records; what the brokers do not tell is not 0."""
    return "unknown" if lag is None else short(lag)


def totals(scene: Scene, rates: Rates) -> list[str]:
    """Return what has been milled, and how fast."""
    chains = scene.status.chains.values()
    return [
        f"{short(sum(chain.documents for chain in chains))} documents",
        f"{sum(chain.bytes for chain in chains) / 1e6:,.1f} MB",
        f"{rates.per_second('bytes') / 1e6:,.2f} MB/s",
        f"{short(rates.per_second('tokens'))} tokens/s",
    ]


def dead_letters(scene: Scene) -> list[str]:
    """Return how many records became none, and why and where the newest did; nothing where there are none."""
    count, newest = scene.status.dead_letters, scene.status.newest_dead_letter
    if not count and newest is None:
        return []
    last = f", the newest: {newest.reason} ({newest.partition}, offset {newest.offset})" if newest is not None else ""
    return [f"{short(count)} dead letter{'' if count == 1 else 's'}{last}"]


def training_text(training: Training) -> str:
    """Return how the training goes, in a few words."""
    return ", ".join(training_parts(training))


def training_parts(training: Training) -> list[str]:
    """Return the same, each number on its own."""
    return [
        f"training step {training.step:,}",
        f"loss {training.loss:.3f}",
        f"{short(training.tokens_per_second)} tokens/s",
        f"{training.wait_share:.0%} waiting for data",
    ]
