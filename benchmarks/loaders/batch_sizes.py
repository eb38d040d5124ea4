"""What batches of other sizes cost: rows as stored, checked, and int64, beside numpy into buffers of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any, Final

from benchmarks.loaders.place import warm
from benchmarks.loaders.stock import make_stock

BLOCKS: Final = {1024: 524_288, 8192: 65_536}
"""Of each length: 1 GiB, many times what a processor's caches hold."""
BATCHES: Final = (8, 32)
PROBE: Final = """
import gc, json, sys
from itertools import cycle
from pathlib import Path
from time import process_time

import numpy as np
from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.consumers import Batches
from zlib_ng.zlib_ng import crc32

directory, blocks, length, size, rounds = sys.argv[1], *map(int, sys.argv[2:])
stock = Stock(Path(directory), blocks, length + 1)

def limit(wide, checked=False):
    rows, order = stock.of_flat(), np.load(stock.order)
    buffers = cycle([[np.empty((size, length + 1), np.uint16), *np.empty((2, size, length), np.int64)]
                     for _ in range(1 + checked)])
    for taken, (buffer, x, y) in zip(order[: len(order) // size * size].reshape(-1, size), buffers):
        np.take(rows, taken, axis=0, out=buffer, mode="clip")
        if checked:
            crc32(buffer)
        if wide:
            np.copyto(x, buffer[:, :-1])
            np.copyto(y, buffer[:, 1:])
        yield buffer

def ours(wide):
    for batch in Batches(stock.store, STREAM, batch_size=size, sequence_length=length, seed=SEED, widen=wide):
        yield (batch.x, batch.y) if wide else batch.rows

def seconds(batches):
    gc.collect()
    began = process_time()
    for _ in batches:
        pass
    return process_time() - began

gc.collect()
gc.freeze()
found = {"rows": [], "int64": []}
for _ in range(rounds + 1):  # the first one brings all into memory
    for name, all_ in found.items():
        wide = name == "int64"
        all_.append([seconds(ours(wide)), seconds(limit(wide)), seconds(limit(wide, checked=True))])
print(json.dumps({name: all_[1:] for name, all_ in found.items()}))
"""
"""Goes through all blocks in turns with the limit, in one process: what others do on the machine meets both."""


def measure_batch_sizes(directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Return, for each size, tokens per second of one core, and the share of what numpy alone does.

    The second limit does what must be done here: it computes a CRC-32 of each batch, without which nothing can be held
    against damage, and fills two buffers in turn, for the loop still holds the batch before.
    """
    found = []
    for length, blocks in BLOCKS.items():
        stock = make_stock(directory / "sizes", blocks=blocks, block_tokens=length + 1)
        for folder in (stock.store, stock.flat.parent):
            warm(
                folder
            )  # both in order, as read ahead: who reads a file first decides in how large pieces it is mapped
        for size in BATCHES:
            arguments = [str(stock.directory), str(stock.blocks), str(length), str(size), str(rounds)]
            environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
            command = [sys.executable, "-c", PROBE, *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            tokens = stock.blocks // size * size * length
            cell: dict[str, Any] = {"batch_size": size, "sequence_length": length}
            for name, runs in json.loads(done.stdout).items():
                cell[name] = {
                    "tokens_per_second": round(tokens / median(ours for ours, *_ in runs)),
                    "limit_tokens_per_second": round(tokens / median(limit for _, limit, _ in runs)),
                    "to_limit": round(median(limit / ours for ours, limit, _ in runs), 3),
                    "to_limit_with_crc": round(median(limit / ours for ours, _, limit in runs), 3),
                }
            found.append(cell)
        rmtree(stock.directory)
    return found
