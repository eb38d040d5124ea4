"""Lab: four processes read one stream, each its own share. The throughput of each, and the parallel efficiency.

python examples/labs/four_workers.py my_texts/ --workers 4
"""

# ruff: noqa: INP001 - a script, no part of a package

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

from corpus import arguments, pack, reading

from tokenmill.consumers import Batches

LENGTH = 127
ENDLESS = 1_000_000  # passes: more than fit into the seconds


def main() -> None:
    """Read with one process, then with several, and compare."""
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="for how long all read, pass after pass")
    options = parser.parse_args()
    train = pack(options.texts, options.store, options.tokenizer, reading(options), sequence_length=LENGTH)["train"]
    (alone,) = together(options.store, train.stream, 1, options.seconds)
    print(f"one process: {alone:,.0f} tokens a second")
    rates = together(options.store, train.stream, options.workers, options.seconds)
    for rank, rate in enumerate(rates):
        print(f"worker {rank}: {rate:,.0f} tokens a second")
    efficiency = sum(rates) / (options.workers * alone)
    print(f"together: {sum(rates):,.0f} tokens a second, a parallel efficiency of {100 * efficiency:.0f} %")


def together(store: Path, stream: str, workers: int, seconds: float) -> list[float]:
    """Return the tokens a second of each of several processes that read at the same time."""
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


def read(share: Share, start: Barrier) -> float:
    """Read this rank's share of every step for some seconds; return its tokens a second. No sample is in two shares."""
    ranks = {"rank": share.rank, "world_size": share.workers}
    batches = Batches(share.store, share.stream, batch_size=16, sequence_length=LENGTH, passes=ENDLESS, **ranks)
    start.wait()
    began = time.perf_counter()
    for _ in batches:
        if time.perf_counter() - began >= share.seconds:
            break
    return batches.metrics.tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
