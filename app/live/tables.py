"""A scene as tables for a terminal."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..supervisor import PartitionStatus, WorkerStatus
from .plain import lag_text, outage, totals, training_text
from .rates import Rates
from .scene import Scene

STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "cut off": "bold red",
    "silent": "bold red",
    "ended": "bold red",
}
SHOWN_PARTITIONS: Final = 6
"""Of one worker; more are counted."""


def tables(scene: Scene, rates: Rates, seconds: float) -> RenderableType:
    """Return the whole picture, ``seconds`` after its beginning."""
    status = scene.status
    heading = Text.assemble((scene.title, "bold"), f"   {int(seconds) // 60:02}:{int(seconds) % 60:02}")
    numbers = Text(
        " · ".join([*totals(scene, rates), f"lag {lag_text(status.lag)} records", f"{status.stored:,} blocks stored"])
    )
    away = [Text(line, style="bold red") for line in outage(scene)]
    parts: list[RenderableType] = [Text(), heading, *away, numbers, Text(), _workers(status.workers), Text()]
    parts.append(_partitions(status.partitions))
    if scene.training is not None:
        parts += [Text(), Text(training_text(scene.training), style="cyan")]
    return Group(*parts)


def _workers(workers: tuple[WorkerStatus, ...]) -> Table:
    table = Table("worker", "process", "state", "partitions", box=None, pad_edge=False, header_style="dim")
    for worker in workers:
        state = worker.state if worker.restart_in is None else f"starts in {worker.restart_in:.0f} s"
        table.add_row(
            worker.name,
            str(worker.pid or "-"),
            Text(state, style=STYLES[worker.state]),
            Text(_names(worker.partitions)),
        )
    return table


def _names(partitions: tuple[str, ...]) -> str:
    if len(partitions) > SHOWN_PARTITIONS:
        return f"{len(partitions)} partitions"
    return " ".join(partitions) or "-"


def _partitions(partitions: tuple[PartitionStatus, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("partition")
    table.add_column("worker")
    for name in ("records", "lag", "blocks", "stored", "segments"):
        table.add_column(name, justify="right")
    table.add_column("by split")
    table.add_column("")
    for partition in partitions:
        chains = partition.chains
        notes = [partition.halted, *(chain.note for chain in chains)]
        table.add_row(
            Text(f"{partition.topic}/{partition.number}"),
            Text(partition.worker or "nobody", style="" if partition.worker else "bold red"),
            f"{partition.end or 0:,}",
            "?" if partition.lag is None else f"{partition.lag:,}",
            f"{sum(chain.blocks for chain in chains):,}",
            f"{sum(chain.stored for chain in chains):,}",
            f"{sum(chain.segments for chain in chains):,}",
            Text(_splits(partition), style="dim"),
            Text("; ".join(note for note in notes if note), style="red"),
        )
    return table


def _splits(partition: PartitionStatus) -> str:
    """Return the stored blocks of each split."""
    names = [(chain.stream.removeprefix(f"{partition.topic}."), chain.stored) for chain in partition.chains]
    return ", ".join(f"{name} {stored:,}" for name, stored in names)
