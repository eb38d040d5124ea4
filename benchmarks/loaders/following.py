"""What a reader costs that has caught up with a growing store, and how soon the next era is a batch in its loop."""

import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from statistics import median
from time import monotonic, sleep
from typing import Any, Final

from benchmarks.loaders.place import Stock
from benchmarks.loaders.stock import SEGMENT_BLOCKS, StockWriter
from benchmarks.measuring import BenchmarkError

ERA_BLOCKS: Final = 256
ERAS: Final = 40
IDLE_SECONDS: Final = 20.0
APART_SECONDS: Final = 0.237
"""Between two eras; no multiple of the reader's 50 ms, so that eras meet all of its phases."""
READER: Final = """
import sys
from pathlib import Path
from time import monotonic, process_time, sleep
from threading import Thread
from tokenmill.consumers import Batches
from benchmarks.loaders.place import STREAM

batches = Batches(Path(sys.argv[1]), STREAM, batch_size=int(sys.argv[2]), sequence_length=1024)

def idle():
    sleep(1)
    began, cpu = monotonic(), process_time()
    sleep(float(sys.argv[3]))
    print("idle", (process_time() - cpu) / (monotonic() - began), flush=True)

Thread(target=idle, daemon=True).start()
for number, batch in enumerate(batches):
    print("batch", monotonic(), flush=True)
"""
"""``CLOCK_MONOTONIC`` is one clock for all processes of a machine."""


def measure_following(directory: Path) -> dict[str, Any]:
    """Return the idle reader's share of a core, and seconds from a durable era to its first batch, over `ERAS` eras."""
    stock = Stock(directory / "following", (ERAS + 1) * ERA_BLOCKS, 1025)
    stock.flat.parent.mkdir(parents=True)
    with StockWriter(stock, SEGMENT_BLOCKS, ERA_BLOCKS) as writer:
        writer.append()
        writer.publish()
        command = [sys.executable, "-c", READER, str(stock.store), str(ERA_BLOCKS), str(IDLE_SECONDS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            _said(reader, "batch")
            idle = _said(reader, "idle")
            waited = []
            for number in range(ERAS):
                sleep(APART_SECONDS)
                writer.append(end=number + 1 == ERAS)
                writer.publish()
                there = monotonic()
                waited.append(_said(reader, "batch") - there)
    rmtree(stock.directory)
    return {
        "idle_cores": float(f"{idle:.3g}"),
        "era_to_batch_seconds": {"median": round(median(waited), 4), "max": round(max(waited), 4)},
    }


def _said(reader: "subprocess.Popen[str]", what: str) -> float:
    """Return the number in the reader's next line; raises `BenchmarkError` if it says anything else."""
    line = reader.stdout.readline() if reader.stdout else ""
    said, _, number = line.partition(" ")
    if said != what:
        raise BenchmarkError(f"the reader of a growing store says {line!r} where {what!r} was due")
    return float(number)
