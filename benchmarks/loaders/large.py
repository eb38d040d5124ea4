"""What opening, resuming and reading cost as a store grows: time and memory of a fresh process."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any, Final

from benchmarks.loaders.place import Stock
from benchmarks.loaders.stock import ERA_BLOCKS, make_stock

BLOCK_TOKENS: Final = 17
"""Small blocks: what is opened are segments, rows and eras, whose number is that of blocks, not of tokens."""
REPEATS: Final = 5
READ: Final = 1000
"""Batches that are read before memory is looked at."""
PROBE: Final = """
import json, resource, sys
from pathlib import Path
from time import perf_counter, process_time
from tokenmill.consumers import Batches

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

store, length, samples, count = sys.argv[1], *map(int, sys.argv[2:])
options = dict(batch_size=16, sequence_length=length, seed=1)
before, began = resident(), perf_counter()
batches = Batches(store, "bench.train", **options)
opened = perf_counter()
next(iter(batches))
first = perf_counter()
state = batches.state_dict()
state |= {"sample": samples // 32 * 16}
began_resume = perf_counter()
other = Batches(store, "bench.train", **options)
other.load_state_dict(state)
middle = iter(other)
next(middle)
resumed = perf_counter()
for _ in zip(range(count), middle):
    pass
grown = resident() - before
again = perf_counter()
for _ in range(1000):
    state = other.state_dict()
cost = (perf_counter() - again) / 1000
print(json.dumps({
    "open_seconds": opened - began, "first_batch_seconds": first - began, "resume_seconds": resumed - began_resume,
    "rss_grown_bytes": grown, "state_dict_seconds": cost, "state_bytes": len(json.dumps(state)),
}))
"""
"""Runs with nothing but the trainer's side imported; what it imports is not counted."""


def measure_large(directory: Path, stock: Stock, blocks: int) -> list[dict[str, Any]]:
    """Return the costs for stores of ``blocks`` and of a hundredth of that; the files of ``stock`` are removed."""
    rmtree(stock.directory)
    found = []
    for size in (max(blocks // 100, ERA_BLOCKS), blocks):
        made = make_stock(directory / f"blocks-{size}", blocks=size, block_tokens=BLOCK_TOKENS)
        runs = [_probe(made) for _ in range(REPEATS)]
        found.append({"blocks": made.blocks} | {name: _short(median(run[name] for run in runs)) for name in runs[0]})
        rmtree(made.directory)
    return found


def _probe(stock: Stock) -> dict[str, float]:
    arguments = [str(stock.store), str(stock.block_tokens - 1), str(stock.blocks), str(READ)]
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _short(number: float) -> float:
    return float(f"{number:.4g}")
