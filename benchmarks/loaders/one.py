"""One loader in a process of its own: ``python -m benchmarks.loaders.one TASK``, with a JSON object; prints another."""

import gc
import json
import logging
import resource
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.loaders.place import Stock, forget, warm

OURS = ("tokenmill", "tokenmill-unchecked", "limit", "nanogpt")
FIRST_PASS_SECONDS = 5.0
"""Enough for a whole pass of a fast loader, and for all that a slow one reads later."""


def contender(name: str) -> Any:
    """Return a loader; imports what it needs, and nothing of the others."""
    if name in OURS:
        from benchmarks.loaders import ours

        if name.startswith("tokenmill"):
            return ours.TokenMill(check=name == "tokenmill")
        return {"limit": ours.Limit, "nanogpt": ours.NanoGpt}[name]()
    from benchmarks.loaders import peers

    return peers.PEERS[name]()


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Prepare a loader's files, or measure its cells."""
    stock = Stock(Path(task["directory"]), task["blocks"], task["block_tokens"])
    loader = contender(task["name"])
    if task["do"] == "prepare":
        loader.prepare(stock)
        return {"versions": {package: version(package) for package in loader.packages}}
    if task["name"] == "limit":
        warm(stock.directory / loader.folder(stock))
    else:
        forget(stock.directory / loader.folder(stock))
    _read(loader.batches(stock, shuffle=True, wide=True), perf_counter() + FIRST_PASS_SECONDS)  # imports, too
    return {"cells": [_cell(loader, stock, task["seconds"], **cell) for cell in task["cells"]]}


def _cell(
    loader: Any, stock: Stock, seconds: float, *, shuffle: bool, wide: bool, cold: bool
) -> dict[str, float] | None:
    """Read whole passes, each opened anew, for some seconds; None where the loader has no such way."""
    tokens, wall, cpu, first = 0, 0.0, 0.0, 0.0
    while wall < seconds and not (cold and tokens):
        gc.collect()  # maps of the pass before are closed
        if cold:
            forget(stock.directory / loader.folder(stock))
        before = perf_counter()
        batches = loader.batches(stock, shuffle=shuffle, wide=wide)
        if next(batches, None) is None:
            return None
        first = perf_counter() - before
        began, began_cpu = perf_counter(), process_time()
        number = _read(batches, began + seconds)
        wall += perf_counter() - began
        cpu += process_time() - began_cpu
        tokens += number * 16 * (stock.block_tokens - 1)
        del batches
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"tokens": tokens, "wall_seconds": wall, "cpu_seconds": cpu, "first_seconds": first, "rss": resident}


def _read(batches: Iterator[Any], until: float) -> int:
    """Read to the end, or up to a time that is looked at every 64 batches."""
    number = 0
    while perf_counter() < until:
        got = sum(1 for _ in islice(batches, 64))
        number += got
        if got < 64:  # noqa: PLR2004 - what was asked for
            break
    return number


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # peers' own
    logging.disable(logging.WARNING)
    answer = run(json.loads(sys.argv[1]))
    print("\n" + json.dumps(answer), flush=True)
