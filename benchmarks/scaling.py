"""``make scaling``: what more eras, partitions, streams and ranks cost a training side (`README.md`)."""

import gc
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import cpu_count
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from benchmarks.loaders.place import SEED, STREAM, Stock
from benchmarks.loaders.stock import make_stock
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tokenmill.consumers import Batches, Mixture

DIRECTORY: Final = Path(".tokenmill/scaling")
NAME: Final = "scaling.json"
BLOCKS: Final = 640_000
"""Of each stock, whatever it is divided into: its bytes are the same, so that only the parts differ."""
BLOCK_TOKENS: Final = 257
SEGMENT_BLOCKS: Final = 32_768
BATCH: Final = 32
ERAS: Final = (100, 10_000)
PARTITIONS: Final = (2, 256)
STREAMS: Final = (1, 35)
RANKS: Final = 1000
RANK_BATCH: Final = 4
RANK_PLACES: Final = """
import sys
from pathlib import Path
import numpy as np
from tokenmill.samples.sequence import Ranks, SequenceId, count_views
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import read_stream

store, stream, rank, world_size, batch_size, steps, output = sys.argv[1:]
info = read_stream(Path(store), stream)
sequence = SequenceId(stream, info.fingerprint.hex(), info.block_tokens - 1, 1, True, (0, None), 1)
trainable = TrainableSamples(
    Path(store), info, sequence, count_views(info, sequence.sequence_length), check=False, on_damage="refuse"
)
ranks = Ranks(int(batch_size), int(rank), int(world_size))
wanted = int(steps) * ranks.global_batch
assert trainable.ready(0, wanted) == wanted
places = trainable.locate(ranks.samples(0, int(steps)))
np.save(output, np.stack([places.partitions, places.blocks]))
"""
"""A rank that computes where its samples are, and reads none; it loads numpy alone."""

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often each is measured.", min=1)] = 5,
    share: Annotated[float, typer.Option(help="Of blocks, parts and ranks; less to see that it works.")] = 1.0,
    directory: Annotated[Path, typer.Option(help="Where the stores go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where scaling.json goes.")] = RESULTS,
) -> None:
    """Measure each, print it, and write `scaling.json`."""
    result = about_this_run()
    with workplace(directory):
        for name, measure in (("eras", _eras), ("partitions", _partitions), ("streams", _streams), ("ranks", _ranks)):
            result[name] = measure(directory / name, share, rounds)
            console.print(name, result[name])
    write_result(output, NAME, result)


def _eras(directory: Path, share: float, rounds: int) -> dict[str, Any]:
    """Return what a loop costs over few large eras and over many small ones."""
    blocks = round(BLOCKS * share)
    counts = [max(round(count * share), 1) for count in ERAS]
    stocks = {count: _stock(directory / str(count), blocks, era_blocks=blocks // count) for count in counts}
    return _costs({count: partial(_batches, stock) for count, stock in stocks.items()}, rounds)


def _partitions(directory: Path, share: float, rounds: int) -> dict[str, Any]:
    """Return what a loop costs over few partitions and over many."""
    counts = [PARTITIONS[0], max(round(PARTITIONS[1] * share), 4)]
    blocks = round(BLOCKS * share)
    stocks = {
        count: _stock(directory / str(count), blocks, era_blocks=8192 // count * count, partitions=count)
        for count in counts
    }
    return _costs({count: partial(_batches, stock) for count, stock in stocks.items()}, rounds)


def _streams(directory: Path, share: float, rounds: int) -> dict[str, Any]:
    """Return what a mixture costs of one stream and of many, equal in weight."""
    counts = [STREAMS[0], max(round(STREAMS[1] * share), 2)]
    blocks = round(BLOCKS * share)

    opened = {}
    for count in counts:
        stocks = [
            _stock(directory / f"{count}-{number}", blocks // count, era_blocks=8192, seed=number)
            for number in range(count)
        ]
        opened[count] = partial(_mixture, stocks)
    return _costs(opened, rounds)


def _ranks(directory: Path, share: float, _: int) -> dict[str, Any]:
    """Return whether so many ranks, each a process, take each sample once, and what a rank costs."""
    count = max(round(RANKS * share), 8)
    steps = max(round(BLOCKS * share) // (RANK_BATCH * count), 1)
    stock = _stock(directory / "store", steps * RANK_BATCH * count, era_blocks=min(8192, RANK_BATCH * count))
    began = perf_counter()

    def compute(rank: int) -> npt.NDArray[np.int64]:
        file = directory / f"{rank}.npy"
        values = (stock.store, STREAM, rank, count, RANK_BATCH, steps, file)
        subprocess.run([sys.executable, "-c", RANK_PLACES, *map(str, values)], check=True)
        found: npt.NDArray[np.int64] = np.load(file)
        return found

    with ThreadPoolExecutor(cpu_count()) as pool:
        found = np.concatenate(list(pool.map(compute, range(count))), axis=1)
    places, times = np.unique(found, axis=1, return_counts=True)
    wanted = steps * RANK_BATCH * count
    if places.shape[1] != wanted or times.max() > 1:
        raise SystemExit(
            f"{count} ranks took {places.shape[1]:,} samples of {wanted:,}, some of them {times.max()} times"
        )
    return {"ranks": count, "steps": steps, "samples_each_once": wanted, "seconds": round(perf_counter() - began, 1)}


def _stock(directory: Path, blocks: int, *, era_blocks: int, partitions: int = 2, seed: int = 1) -> Stock:
    era_blocks = max(era_blocks // partitions, 1) * partitions
    return make_stock(
        directory,
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        segment_blocks=SEGMENT_BLOCKS,
        era_blocks=era_blocks,
        partitions=partitions,
        seed=seed,
    )


def _batches(stock: Stock) -> Batches:
    return Batches(stock.store, STREAM, batch_size=BATCH, seed=SEED)


def _mixture(stocks: list[Stock]) -> Mixture:
    given = {f"s{number}": {"store": stock.store, "stream": STREAM} for number, stock in enumerate(stocks)}
    return Mixture.open(given, dict.fromkeys(given, 1), batch_size=BATCH, seed=SEED)


def _costs(opened: Mapping[int, Callable[[], Batches | Mixture]], rounds: int) -> dict[str, Any]:
    """Return, by the number of parts, milliseconds to the first batch and to that of a resumed run, and the speed."""
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in opened}
    for _ in range(rounds + 1):  # the first one brings all into memory
        for count, open_ in opened.items():
            gc.collect()
            found[count].append(_cost(open_))
    names = ("first_batch_ms", "resumed_batch_ms", "tokens_per_cpu_second")
    costs = {
        count: dict(zip(names, map(median, zip(*all_[1:], strict=True)), strict=True)) for count, all_ in found.items()
    }
    few, many = costs.values()
    ratios = {name: round(many[name] / few[name], 3) for name in names}
    return {
        **{str(count): {n: float(f"{v:.4g}") for n, v in each.items()} for count, each in costs.items()},
        "ratios": ratios,
    }


def _cost(open_: Callable[[], Batches | Mixture]) -> tuple[float, float, float]:
    began = perf_counter()
    loop = open_()
    batches = iter(loop)
    next(batches)
    first, state = perf_counter() - began, loop.state_after(len(loop) // 2)
    began = process_time()
    tokens = sum(batch.x.numel() for batch in batches)
    speed = tokens / (process_time() - began)
    began = perf_counter()
    loop = open_()
    loop.load_state_dict(state)
    next(iter(loop))
    return first * 1e3, (perf_counter() - began) * 1e3, speed


if __name__ == "__main__":
    typer.run(main)
