"""One rank of one loader in a process of its own: ``python -m benchmarks.mixtures.one TASK``; prints a JSON object."""

import gc
import json
import logging
import pickle
import sys
import warnings
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.mixtures.contenders import contender, join_ranks
from benchmarks.mixtures.streams import BATCH, names_of, stocks_of


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Prepare a loader's files, measure its speed, or tell what it reads."""
    stocks = stocks_of(Path(task["directory"]), task["blocks"], task["block_tokens"])
    loader = contender(task["name"])
    rank, world_size = task.get("rank", 0), task.get("world_size", 1)
    if task["do"] == "prepare":
        loader.prepare(stocks)
        return {"versions": {package: version(package) for package in loader.packages}}
    join_ranks(rank, world_size)
    if task["do"] == "speed":
        _timed(loader, stocks, task["seconds"])  # maps, imports and the page cache
        return _timed(loader, stocks, task["seconds"])
    state = pickle.loads(Path(task["load"]).read_bytes()) if "load" in task else None  # noqa: S301 - our own
    opened = loader.open(stocks, rank, world_size, state)
    rows = [names_of(batch) for batch in islice(loader.batches(opened), task["steps"])]
    if "save" in task:
        Path(task["save"]).write_bytes(pickle.dumps(loader.state(opened)))
    return {"rows": rows}


def _timed(loader: Any, stocks: Any, seconds: float) -> dict[str, Any]:
    """Read for some CPU seconds, again from the beginning where that is too little."""
    tokens, cpu = 0, 0.0
    width = next(iter(stocks.values())).block_tokens - 1
    while cpu < seconds:  # opening is not counted
        gc.collect()
        batches = loader.batches(loader.open(stocks, 0, 1, None))
        next(batches)
        before, got = process_time(), 0
        while process_time() - before < seconds - cpu and (read := sum(1 for _ in islice(batches, 64))):
            got += read
        cpu += process_time() - before
        tokens += got * BATCH * width
    return {"tokens_per_cpu_second": tokens / cpu}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # peers' own
    logging.disable(logging.WARNING)
    answer = run(json.loads(sys.argv[1]))
    print("\n" + json.dumps(answer), flush=True)
