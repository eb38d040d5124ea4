"""How fast `Batches` reads shuffled samples that are on the disk alone, and whether a training loop waits for them.

``python -m benchmarks.cold STORE FLAT`` measures one round in a process of its own, and prints it as JSON.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.loaders.place import STREAM, Stock, forget
from benchmarks.loaders.stock import make_stock
from benchmarks.measuring import BenchmarkError
from tokenmill.consumers import Batches

BLOCKS: Final = 400_000
"""Of 1,025 tokens, 0.8 GB: forty-nine eras of the default size."""
STEP_SECONDS: Final = 0.02
"""How long the loop of `wait_ratio` works on a batch."""
STEPS: Final = 1500
"""Of that loop, half a minute."""
OPTIONS: Final[dict[str, Any]] = {"batch_size": 16, "sequence_length": 1024, "widen": False}


def measure_cold(directory: Path, rounds: int) -> dict[str, Any]:
    """Return the figures: ``cold_of_disk`` and ``wait_ratio`` are medians over the rounds."""
    stock = make_stock(directory / "cold", blocks=BLOCKS, block_tokens=1025)
    command = [sys.executable, "-m", "benchmarks.cold", str(stock.directory), str(stock.blocks)]
    found = []
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"reading cold failed: {done.stderr[-2000:]}")
        found.append(json.loads(done.stdout))
    return {name: round(median(one[name] for one in found), 6) for name in found[0]}


def _round(stock: Stock) -> dict[str, float]:
    with_ahead, faults = _whole(stock, {})
    without, faults_without = _whole(stock, {"read_ahead": 0})
    disk = _disk(stock.flat)
    return {
        "cold_of_disk": with_ahead / disk,
        "cold_of_disk_without_read_ahead": without / disk,
        "cold_mb_per_s": with_ahead / 1e6,
        "disk_mb_per_s": disk / 1e6,
        "loop_major_faults": faults,
        "loop_major_faults_without_read_ahead": faults_without,
        "wait_ratio": _loop(stock),
    }


def _disk(path: Path) -> float:
    """Return bytes a second of a file that is read in a row, into nothing."""
    forget(path.parent)
    with path.open("rb") as file, Path(os.devnull).open("wb") as nowhere:
        size, at, began = os.fstat(file.fileno()).st_size, 0, time.perf_counter()
        while at < size:
            at += os.sendfile(nowhere.fileno(), file.fileno(), at, 4 << 20)
        return size / (time.perf_counter() - began)


def _whole(stock: Stock, options: dict[str, Any]) -> tuple[float, int]:
    """Return bytes a second of a pass over a cold store, opening included, and the loop's major page faults."""
    gc.collect()  # what is mapped cannot be dropped
    forget(stock.store)
    faults, began = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt, time.perf_counter()
    batches = Batches(stock.store, STREAM, **OPTIONS, **options)
    for _ in batches:
        pass
    seconds = time.perf_counter() - began
    return batches.metrics.bytes / seconds, resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - faults


def _loop(stock: Stock) -> float:
    """Return the part of its time that a loop on a cold store waits, from its second batch on."""
    gc.collect()
    forget(stock.store)
    batches = Batches(stock.store, STREAM, **OPTIONS)
    iterator = iter(batches)
    next(iterator)
    began = batches.metrics
    for _ in range(STEPS):
        time.sleep(STEP_SECONDS)
        next(iterator)
    return batches.metrics.since(began).wait_ratio


if __name__ == "__main__":
    print(json.dumps(_round(Stock(Path(sys.argv[1]), int(sys.argv[2]), 1025))))
