"""One loop over a bucket, or over the local files, in a process of its own; prints a JSON object.

``python -m benchmarks.loaders.from_bucket TASK``; the environment says how to log in.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.place import SEED, STREAM, Stock

BATCH = 16


def ours(task: dict[str, Any], stock: Stock) -> Iterator[Any]:
    """Read as `Batches`, from the bucket or from the store."""
    from tokenmill.consumers import Batches

    options: dict[str, Any] = {"batch_size": BATCH, "sequence_length": stock.block_tokens - 1}
    options |= {"seed": SEED, "widen": False}
    if task["name"] == "tokenmill-local":
        return iter(Batches(stock.store, STREAM, **options))
    return iter(Batches(task["address"], STREAM, cache=task["cache"], cache_bytes=task["cache_bytes"], **options))


def litdata(task: dict[str, Any], stock: Stock) -> Iterator[Any]:
    """Read as litData's `TokensLoader`."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 - it has no option for that
    login = {"endpoint_url": "AWS_ENDPOINT_URL", "aws_access_key_id": "AWS_ACCESS_KEY_ID"}
    login |= {"aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    data = StreamingDataset(
        f"{task['address']}/litdata",
        item_loader=TokensLoader(block_size=stock.block_tokens),
        shuffle=True,
        seed=SEED,
        cache_dir=task["cache"],
        max_cache_size="100GB",  # with less than all it fails: it closes a chunk twice (0.2.76)
        storage_options={name: os.environ[variable] for name, variable in login.items()},
    )
    return iter(StreamingDataLoader(data, batch_size=BATCH, num_workers=0))


def mosaic(task: dict[str, Any], _: Stock) -> Iterator[Any]:
    """Read as MosaicML Streaming's MDS."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    data = StreamingDataset(
        remote=f"{task['address']}/mosaic",
        local=task["cache"],
        cache_limit=max(task["cache_bytes"], 300 << 20),  # it demands four shards, of 64 MiB by default
        shuffle=True,
        shuffle_seed=SEED,
        batch_size=BATCH,
        num_canonical_nodes=1,
    )
    return iter(StreamingDataLoader(data, batch_size=BATCH, num_workers=0))


def main() -> None:
    """Read so many steps, each of which takes so long; print seconds, how long was waited, and how much was read."""
    task = json.loads(sys.argv[1])
    stock = Stock(Path(task["directory"]), task["blocks"], task["block_tokens"])
    open_loop = {"litdata": litdata, "mosaicml-streaming": mosaic}.get(task["name"], ours)
    batches = open_loop(task, stock)
    next(batches)
    began, waited, steps, largest = time.perf_counter(), 0.0, 0, 0
    while steps < task["steps"]:
        asked = time.perf_counter()
        if next(batches, None) is None:
            break
        waited += time.perf_counter() - asked
        steps += 1
        if task["step_seconds"]:
            time.sleep(task["step_seconds"])
            if steps % 50 == 0:
                largest = max(largest, _tokens_in(Path(task["cache"])))
    seconds = time.perf_counter() - began
    print("\n" + json.dumps({"steps": steps, "seconds": seconds, "waited": waited, "cache": largest}))


def _tokens_in(cache: Path) -> int:
    return sum(file.stat().st_size for file in cache.rglob("*.bin")) if cache.exists() else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # peers' own
    main()
