"""``make bench-bucket``: training from a bucket 50 ms away, and brokers that answer late, beside near ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Annotated, Any, Final

import obstore
import typer
from obstore.store import S3Store
from rich.console import Console
from rich.table import Table

from benchmarks.far_broker import far_of_near
from benchmarks.loaders.from_bucket import BATCH
from benchmarks.loaders.peers import PEERS
from benchmarks.loaders.place import STREAM, Stock
from benchmarks.loaders.stock import PARTITIONS, make_stock
from benchmarks.measuring import BenchmarkError
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tests.bucket.server import Server, Way, login
from tokenmill.app.buckets import Upload
from tokenmill.bucket.objects import Bucket

DIRECTORY: Final = Path(".tokenmill/bucket")
PACKAGES: Final = Path(".venv/loader-peers")
"""Where `make bench-loader` puts the other loaders' packages."""
BLOCK_TOKENS: Final = 1025
ERA_BLOCKS: Final = 8192
SECONDS: Final = 0.05
"""Until the server hears of a request."""
STEP_SECONDS: Final = 0.02
ERAS_IN_CACHE: Final = 2
NAMES: Final = ("tokenmill", "tokenmill-local", "litdata", "mosaicml-streaming")

console = Console(width=120, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often everything is measured.", min=1)] = 3,
    blocks: Annotated[int, typer.Option(help="Blocks of 1025 tokens, 2 kB each.")] = 131_072,
    steps: Annotated[int, typer.Option(help="Steps of 20 ms in which waiting is measured.")] = 1500,
    text: Annotated[int, typer.Option(help="Bytes of text that go through a broker that is far.")] = 600_000_000,
    directory: Annotated[Path, typer.Option(help="Where stores and buckets go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where bucket.json goes.")] = RESULTS,
) -> None:
    """Measure, print a table, and write `bucket.json`."""
    about = about_this_run()
    with workplace(directory, log_level="error"):
        with Server("versitygw", directory.absolute() / "server") as server:
            os.environ |= login(server.address)
            with console.status("writing a store, and bringing it into the bucket"):
                stock = _stock(directory.absolute() / "tokens", blocks)
            with Way(server.address, 0, 0.0, SECONDS) as way:
                runs = [_round(stock, way, number, steps) for number in range(rounds)]
        broker = far_of_near(directory.absolute() / "broker", rounds, text, console)
    result = _result(runs, stock, steps)
    result["ratios"]["far_broker_of_local"] = broker.pop("ratio")
    _print(result)
    write_result(
        output, "bucket.json", about | {"rounds": rounds, "blocks": stock.blocks} | result | {"far_broker": broker}
    )


def _stock(directory: Path, blocks: int) -> Stock:
    """Write the tokens for all loaders, and upload them."""
    each = ERA_BLOCKS // PARTITIONS  # of an era, a segment of each partition: then the cache has whole eras
    stock = make_stock(directory, blocks=blocks, block_tokens=BLOCK_TOKENS, segment_blocks=each)
    upload = Upload(stock.store, STREAM, Bucket.open("s3://corpus/tokenmill"))
    upload.begin()
    while upload.step():
        pass
    store = S3Store("corpus")
    for name in NAMES[2:]:
        task = {"do": "prepare", "name": name, "directory": str(directory), "blocks": stock.blocks}
        _run("benchmarks.loaders.one", task | {"block_tokens": BLOCK_TOKENS}, peer=True)
        folder = directory / PEERS[name]().folder(stock)
        for file in filter(Path.is_file, folder.rglob("*")):
            obstore.put(store, f"{folder.name}/{file.relative_to(folder)}", file)
    return stock


def _round(stock: Stock, way: Way, number: int, steps: int) -> dict[str, Any]:
    """Read with each loader at full speed; and with ours in steps."""
    found: dict[str, Any] = {}
    for name in NAMES[number % len(NAMES) :] + NAMES[: number % len(NAMES)]:
        with console.status(f"round {number + 1}: {name}"):
            before = way.read
            found[name] = _read(stock, way, name, 1 << 40, 0.0) | {"fetched": way.read - before}
    with console.status(f"round {number + 1}: steps of {STEP_SECONDS * 1000:.0f} ms"):
        found["steps"] = _read(stock, way, "tokenmill", steps, STEP_SECONDS)
    return found


def _read(stock: Stock, way: Way, name: str, steps: int, step_seconds: float) -> dict[str, Any]:
    cache = stock.directory / "cache"
    rmtree(cache, ignore_errors=True)
    cache.mkdir()
    task = {
        "name": name,
        "address": "s3://corpus/tokenmill" if name == "tokenmill" else "s3://corpus",
        "cache": str(cache),
        "cache_bytes": ERAS_IN_CACHE * ERA_BLOCKS * BLOCK_TOKENS * 2,
        "steps": steps,
        "step_seconds": step_seconds,
        "directory": str(stock.directory),
        "blocks": stock.blocks,
        "block_tokens": BLOCK_TOKENS,
    }
    found: dict[str, Any] = _run("benchmarks.loaders.from_bucket", task, peer=name in PEERS, **login(way.address))
    return found


def _run(module: str, task: dict[str, Any], *, peer: bool, **variables: str) -> Any:
    """Run a module in a process of its own; raises `BenchmarkError` where it fails."""
    path = os.pathsep.join([*([str(PACKAGES.absolute())] if peer else []), str(Path.cwd())])
    environment = os.environ | variables | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", module, json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{task['name']} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _result(runs: list[dict[str, Any]], stock: Stock, steps: int) -> dict[str, Any]:
    """Return medians, and ratios round by round."""
    token_bytes = stock.blocks * BLOCK_TOKENS * 2
    rates = {
        name: [run[name]["steps"] * BATCH * (BLOCK_TOKENS - 1) / run[name]["seconds"] for run in runs] for name in NAMES
    }
    ratios = {
        "bucket_of_local" if name == "tokenmill-local" else f"to_{name}": round(
            median(ours / theirs for ours, theirs in zip(rates["tokenmill"], rates[name], strict=True)), 3
        )
        for name in NAMES[1:]
    }
    in_steps = [run["steps"] for run in runs]
    ideal = steps * STEP_SECONDS
    ratios["bucket_of_local_in_steps"] = round(median(ideal / (ideal + run["waited"]) for run in in_steps), 4)
    return {
        "milliseconds_away": round(SECONDS * 1000),
        "tokens_per_second": {name: round(median(found)) for name, found in rates.items()},
        "ratios": ratios,
        "bytes_fetched_per_byte": {
            name: round(median(run[name]["fetched"] / token_bytes for run in runs), 3)
            for name in NAMES
            if name != "tokenmill-local"
        },
        "wait_ratio": round(median(run["waited"] / run["seconds"] for run in in_steps), 5),
        "cache_eras": round(max(run["cache"] for run in in_steps) / (ERA_BLOCKS * BLOCK_TOKENS * 2), 2),
    }


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"from a bucket that is {result['milliseconds_away']} ms away", title_justify="left")
    for column in ("", "million tokens a second", "bytes fetched for each byte"):
        table.add_column(column, justify="right" if column else "left")
    for name, rate in result["tokens_per_second"].items():
        fetched = result["bytes_fetched_per_byte"].get(name)
        table.add_row(name, f"{rate / 1e6:,.1f}", "" if fetched is None else f"{fetched:.3f}")
    console.print(table)
    console.print(json.dumps({name: result[name] for name in ("ratios", "wait_ratio", "cache_eras")}))


if __name__ == "__main__":
    typer.run(main)
