"""``make growth``: what it costs to start, resume, append and read, as the log and the store grow a hundredfold."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Final, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.grown import Grown, small_settings
from benchmarks.resuming import resume_mill, resume_segments
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tokenmill.app.local.broker import Broker
from tokenmill.consumers import Batches
from tokenmill.store import PartitionWriter, open_partition

DIRECTORY: Final = Path(".tokenmill/growth")
BLOCKS: Final = (2_000, 20_000, 200_000)
BATCH: Final = 64
"""Blocks in a batch that is read."""
READ_BATCHES: Final = 25
"""Batches in one measurement; fewer than the smallest store has."""
LAST_APPENDS: Final = 200
"""Messages before each size whose appends count."""

console = Console(width=140, highlight=False)


class Cost(NamedTuple):
    """What one thing costs at one size."""

    seconds: float
    """Median of the repetitions."""
    low: float
    high: float


def main(
    *,
    repetitions: Annotated[int, typer.Option(help="How often everything is measured at each size.", min=1)] = 15,
    blocks: Annotated[str, typer.Option(help="The sizes, in blocks.")] = ",".join(map(str, BLOCKS)),
    directory: Annotated[Path, typer.Option(help="Where broker and store go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where growth.json goes.")] = RESULTS,
) -> None:
    """Measure, print a table, and write `growth.json`."""
    sizes = [int(size) for size in blocks.split(",")]
    about = about_this_run()
    with workplace(directory), Broker(directory / "broker") as broker:
        found = asyncio.run(_all_sizes(broker, directory / "store", sizes, repetitions))
    _print(found)
    ratios = {name: _ratio(found, name) for name in found[sizes[0]]}
    result = {
        **about,
        "repetitions": repetitions,
        "seconds": {size: {name: cost._asdict() for name, cost in costs.items()} for size, costs in found.items()},
        "largest_to_smallest": ratios,
    }
    write_result(output, "growth.json", result)


async def _all_sizes(broker: Broker, store: Path, sizes: list[int], repetitions: int) -> dict[int, dict[str, Cost]]:
    grown = await Grown.begin(small_settings(broker.bootstrap_servers, store))
    found = {}
    for size in sizes:
        with console.status(f"growing to {size:,} blocks"):
            await grown.grow(size)
        with console.status(f"measuring at {size:,} blocks"):
            found[size] = await _costs(grown, repetitions)
    return found


async def _costs(grown: Grown, repetitions: int) -> dict[str, Cost]:
    """Measure everything at the size that the store has now."""
    store, stream = grown.settings.store, grown.settled.stream.name
    block_tokens = grown.settings.block_tokens
    read_tokens = READ_BATCHES * BATCH * block_tokens
    rng = np.random.default_rng(grown.blocks)
    reader = open_partition(store, stream, 0)
    batches = Batches(store, stream, batch_size=BATCH, sequence_length=block_tokens - 1, shuffle=False)

    def read_random() -> None:
        for _ in range(READ_BATCHES):
            reader.gather(rng.integers(0, reader.blocks, BATCH))

    def read_in_order() -> None:
        for _ in zip(range(READ_BATCHES), batches.rewind(), strict=False):
            pass

    appends = sorted(grown.append_seconds[-LAST_APPENDS:])
    return {
        "mill: resume a partition": await _timed(lambda: resume_mill(grown), repetitions),
        "segments: resume a partition": await _timed(lambda: resume_segments(grown), repetitions),
        "segments: recover the directory": await _timed(
            lambda: _in_line(PartitionWriter.open(grown.store, stream, 0).close), repetitions
        ),
        "append and commit, a token": Cost(median(appends), appends[0], appends[-1]),
        "open for reading": await _timed(lambda: _in_line(lambda: open_partition(store, stream, 0)), repetitions),
        "read blocks in order, a token": await _timed(lambda: _in_line(read_in_order), repetitions, read_tokens),
        "read blocks at random, a token": await _timed(lambda: _in_line(read_random), repetitions, read_tokens),
    }


async def _timed(work: Callable[[], Awaitable[None]], repetitions: int, parts: int = 1) -> Cost:
    await work()  # once for the caches, of this process and of the system
    times = []
    for _ in range(repetitions):
        started = perf_counter()
        await work()
        times.append((perf_counter() - started) / parts)
    return Cost(median(times), min(times), max(times))


async def _in_line(work: Callable[[], object]) -> None:
    work()


def _ratio(found: Mapping[int, Mapping[str, Cost]], name: str) -> float:
    smallest, *_, largest = found.values()
    return round(largest[name].seconds / smallest[name].seconds, 3)


def _print(found: Mapping[int, Mapping[str, Cost]]) -> None:
    table = Table(
        title="cost by number of blocks: median (fastest to slowest)", title_justify="left", title_style="bold"
    )
    table.add_column("")
    for size in found:
        table.add_column(f"{size:,}", justify="right")
    table.add_column("largest : smallest", justify="right")
    for name in next(iter(found.values())):
        costs = [costs[name] for costs in found.values()]
        unit, factor = ("ns", 1e9) if name.endswith("a token") else ("ms", 1e3)
        shown = [f"{c.seconds * factor:.2f} ({c.low * factor:.2f} to {c.high * factor:.2f}) {unit}" for c in costs]
        table.add_row(name, *shown, f"{_ratio(found, name):.2f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
