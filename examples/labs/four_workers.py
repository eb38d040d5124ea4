"""Lab: four processes read one stream, each its own share. The throughput of each, and the parallel efficiency.

python examples/labs/four_workers.py my_texts/ --workers 4
"""

# ruff: noqa: INP001 - a script, no part of a package

import multiprocessing
import time
from pathlib import Path

from corpus import arguments, pack

from tokenmill.consumers import Batches

LENGTH = 127


def main() -> None:
    """Read with one process, then with several, and compare."""
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--passes", type=int, default=20, help="how often each reads the stream")
    options = parser.parse_args()
    train = pack(options.texts, options.store, options.tokenizer, sequence_length=LENGTH)["train"]
    (alone,) = together(options.store, train.stream, 1, options.passes)
    print(f"one process: {alone:,.0f} tokens a second")
    rates = together(options.store, train.stream, options.workers, options.passes)
    for rank, rate in enumerate(rates):
        print(f"worker {rank}: {rate:,.0f} tokens a second")
    efficiency = sum(rates) / (options.workers * alone)
    print(f"together: {sum(rates):,.0f} tokens a second, a parallel efficiency of {100 * efficiency:.0f} %")


def together(store: Path, stream: str, workers: int, passes: int) -> list[float]:
    """Return the tokens a second of each of several processes that read at the same time."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(workers)
    results = context.Queue()
    processes = [
        context.Process(target=read, args=(store, stream, rank, workers, passes, start, results))
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(workers)]


def read(store, stream, rank, workers, passes, start, results) -> None:  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Read this rank's share of every step: no sample is in two shares."""
    batches = Batches(
        store, stream, batch_size=16, sequence_length=LENGTH, rank=rank, world_size=workers, passes=passes
    )
    start.wait()
    began = time.perf_counter()
    for _ in batches:
        pass
    results.put((rank, batches.metrics.tokens / (time.perf_counter() - began)))


if __name__ == "__main__":
    main()
