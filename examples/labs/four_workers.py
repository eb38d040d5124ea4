"""Lab: four processes read one stream, each its own share. What each gets, its throughput, the parallel efficiency.

python examples/labs/four_workers.py my_texts/ --workers 4
"""

# ruff: noqa: INP001 - a script, no part of a package

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import lab
from corpus import arguments, pack, reading

from tokenmill.consumers import Batches

LENGTH = 127
ENDLESS = 1_000_000  # passes: more than fit into the seconds
SHOWN = 2  # batches of each process


def main() -> None:
    """Read with one process, then with several, and compare."""
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="for how long all read, pass after pass")
    options = parser.parse_args()
    train = pack(options.texts, options.store, options.tokenizer, reading(options), sequence_length=LENGTH)["train"]
    ((alone, _),) = together(options.store, train.stream, 1, options.seconds)
    print(f"one process: {alone:,.0f} tokens a second")
    found = together(options.store, train.stream, options.workers, options.seconds)
    for rank, (speed, first) in enumerate(found):
        for batch in first:
            print(f"worker {rank}, {batch}")
        print(f"worker {rank}: {speed:,.0f} tokens a second")
    rate = sum(speed for speed, _ in found)
    efficiency = rate / (options.workers * alone)
    print(f"together: {rate:,.0f} tokens a second, a parallel efficiency of {100 * efficiency:.0f} %")


def together(store: Path, stream: str, workers: int, seconds: float) -> list[tuple[float, list[str]]]:
    """Return of several processes that read at the same time what `read` does."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        start = manager.Barrier(workers)
        with ProcessPoolExecutor(workers, context) as pool:
            shares = [pool.submit(read, Share(store, stream, rank, workers, seconds), start) for rank in range(workers)]
            return [share.result() for share in shares]


class Share(NamedTuple):
    """What one process reads."""

    store: Path
    stream: str
    rank: int
    workers: int
    seconds: float


def read(share: Share, start: Barrier) -> tuple[float, list[str]]:
    """Read this rank's share of every step for some seconds; return its tokens a second, and its first batches.

    No sample is in two shares.
    """
    ranks = {"rank": share.rank, "world_size": share.workers}
    batches = Batches(share.store, share.stream, batch_size=16, passes=ENDLESS, **ranks)
    start.wait()
    began = time.perf_counter()
    first = []
    for batch in batches:
        if batch.step < SHOWN:
            rows = ", ".join(map(str, batch.x[:3, 0].tolist()))
            first.append(f"step {batch.step}: x {list(batch.x.shape)}, whose rows begin with the tokens {rows} …")
        if time.perf_counter() - began >= share.seconds:
            break
    return batches.metrics.tokens / (time.perf_counter() - began), first


if __name__ == "__main__":
    lab.run(main)
