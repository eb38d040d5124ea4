"""What stores of an odd shape cost: an era of very many segments, and very many eras of two blocks."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any, Final
from unittest.mock import patch

from benchmarks.loaders.place import Stock
from benchmarks.loaders.stock import make_stock

SHAPES: Final = {
    "one era of 10,000 segments": {"blocks": 80_000, "segment_blocks": 8, "era_blocks": 80_000},
    "50,000 eras of two blocks": {"blocks": 100_000, "era_blocks": 2},
}
PROBE: Final = """
import json, resource, sys
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from benchmarks.loaders.ours import Limit
from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.consumers import Batches

directory, blocks, check = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
stock = Stock(Path(directory), blocks, 1025)

def opened():
    return Batches(stock.store, STREAM, batch_size=16, sequence_length=1024, seed=SEED, widen=False, check=check)

def rest(batches):
    began = process_time()
    number = sum(1 for _ in batches)
    return (process_time() - began) / number * 1e6

began, began_cpu = perf_counter(), process_time()
batches = opened()
iteration = (batch.rows for batch in batches)
next(iteration)
first, first_cpu = perf_counter() - began, process_time() - began_cpu
state = batches.state_dict() | {"sample": blocks // 32 * 16}
began_cpu = process_time()
resumed = opened()
resumed.load_state_dict(state)
next(iter(resumed))
resume_cpu = process_time() - began_cpu
del resumed
pass_1 = rest(iteration)
pass_2 = rest(batch.rows for batch in batches.rewind())
rest(Limit().batches(stock, shuffle=True, wide=False))
print(json.dumps({
    "first_batch_seconds": first, "first_batch_cpu_seconds": first_cpu, "resume_cpu_seconds": resume_cpu,
    "microseconds_per_batch": pass_1, "again_microseconds_per_batch": pass_2,
    "limit_microseconds_per_batch": rest(Limit().batches(stock, shuffle=True, wide=False)),
}))
"""
"""Runs in a process that may have 256 files open."""


def measure_shapes(directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the costs for each store, with checks and without: medians of so many fresh processes."""
    found = []
    for name, shape in SHAPES.items():
        place = directory / "shape"
        with _without_syncs():
            stock = make_stock(place, block_tokens=1025, **shape)
        runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for number in range(rounds):
            for check in (True, False) if number % 2 else (False, True):
                runs[check].append(_probe(stock, check=check))
        for check, all_ in runs.items():
            numbers = {key: float(f"{median(run[key] for run in all_):.4g}") for key in all_[0]}
            found.append({"store": name, "check": check} | numbers)
        rmtree(place)
    return found


@contextmanager
def _without_syncs() -> Iterator[None]:
    """Write without waiting for the disk, for each of 10,000 segments, several times: minutes that measure nothing."""
    with patch.object(os, "fsync", lambda _: None), patch.object(os, "fdatasync", lambda _: None):
        yield


def _probe(stock: Stock, *, check: bool) -> dict[str, float]:
    arguments = [str(stock.directory), str(stock.blocks), str(check)]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", PROBE, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer
