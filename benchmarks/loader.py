"""``make bench-loader``: how fast tokens come out of a store, beside other loaders and what numpy alone could do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console

from benchmarks.loaders.batch_sizes import measure_batch_sizes
from benchmarks.loaders.following import measure_following
from benchmarks.loaders.gpu import measure_gpu
from benchmarks.loaders.large import measure_large
from benchmarks.loaders.place import Stock
from benchmarks.loaders.shapes import measure_shapes
from benchmarks.loaders.stock import make_stock
from benchmarks.loaders.table import (
    print_batch_sizes,
    print_following,
    print_gpu,
    print_large,
    print_shapes,
    print_speeds,
)
from benchmarks.measuring import BenchmarkError
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result

DIRECTORY: Final = Path(".tokenmill/loader")
PACKAGES: Final = Path(".venv/loader-peers")
"""Where `make bench-loader` puts the other loaders' packages."""
NAMES: Final = (
    "tokenmill",
    "tokenmill-unchecked",
    "limit",
    "nanogpt",
    "litdata",
    "mosaicml-streaming",
    "datasets",
    "lance",
)
OWN: Final = 4
"""The first ones, which run with the project's packages."""
CELLS: Final = [
    {"shuffle": shuffle, "wide": wide, "cold": False} for wide in (False, True) for shuffle in (True, False)
] + [{"shuffle": shuffle, "wide": False, "cold": True} for shuffle in (True, False)]

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often everything is measured.", min=1)] = 3,
    blocks: Annotated[
        int, typer.Option(help="Blocks of 1025 tokens; 2 kB each, once for each of six formats.")
    ] = 1_000_000,
    large: Annotated[int, typer.Option(help="Small blocks in the large store; 0 leaves it out.")] = 10_000_000,
    shapes: Annotated[bool, typer.Option(help="Measure an era of many segments, and many small eras.")] = True,
    sizes_only: Annotated[bool, typer.Option(help="Measure batches of other sizes alone, into loader.json.")] = False,
    gpu_only: Annotated[bool, typer.Option(help="Measure what a GPU gets alone, into loader.json.")] = False,
    seconds: Annotated[float, typer.Option(help="How long each loader reads in each cell.")] = 1.0,
    only: Annotated[str, typer.Option(help="These loaders, with commas.")] = ",".join(NAMES),
    directory: Annotated[Path, typer.Option(help="Where the tokens go, 12 kB a block; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where loader.json goes.")] = RESULTS,
) -> None:
    """Measure, print tables, and write `loader.json`."""
    about = about_this_run()
    if sizes_only or gpu_only:
        with workplace(directory, log_level="error"):
            part = _gpu(directory, rounds) if gpu_only else _batch_sizes(directory, rounds)
        write_result(output, "loader.json", _held(output) | part)
        return
    names = [name for name in NAMES if name in only.split(",")]
    with workplace(directory, log_level="error"):
        with console.status("writing a store"):
            stock = make_stock(directory.absolute() / "tokens", blocks=blocks, block_tokens=1025)
        versions: dict[str, dict[str, str]] = {}
        for name in names:
            with console.status(f"writing the files of {name}"):
                versions[name] = _alone(stock, name, do="prepare")["versions"]
        found: dict[str, list[list[Any]]] = {name: [] for name in names}
        for number in range(rounds):
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned:
                with console.status(f"round {number + 1} of {rounds}: {name}"):
                    found[name].append(_alone(stock, name, do="measure", seconds=seconds, cells=CELLS)["cells"])
        speeds = [
            _cell(cell, {name: [one[place] for one in found[name]] for name in names})
            for place, cell in enumerate(CELLS)
        ]
        print_speeds(speeds, console)
        gpu = _gpu(directory, rounds)
        sizes = measure_large(directory.absolute(), stock, large) if large else []
        print_large(sizes, console)
        found_shapes = measure_shapes(directory.absolute(), rounds) if shapes else []
        print_shapes(found_shapes, console)
        batch_sizes = _batch_sizes(directory, rounds)
        following = measure_following(directory.absolute())
        print_following(following, console)
    result = about | {"loaders": versions, "rounds": rounds, "blocks": stock.blocks, "speeds": speeds}
    result |= {"sizes": sizes, "shapes": found_shapes, "following": following} | batch_sizes
    result["gpu"] = gpu.get("gpu", _held(output).get("gpu"))  # one of another machine stays
    write_result(output, "loader.json", result)


def _alone(stock: Stock, name: str, **task: Any) -> Any:
    """Run a loader in a process of its own, with its own packages; raises `BenchmarkError` where it fails."""
    peers = [] if NAMES.index(name) < OWN else [str(PACKAGES.absolute())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*peers, str(Path.cwd())]), "HF_HUB_OFFLINE": "1"}
    place = {"directory": str(stock.directory), "blocks": stock.blocks, "block_tokens": stock.block_tokens}
    command = [sys.executable, "-m", "benchmarks.loaders.one", json.dumps(task | {"name": name} | place)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{name} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _cell(cell: dict[str, bool], runs: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the medians of one cell, and TokenMill's rate divided by each other's, round by round."""
    kind = "wall_seconds" if cell["cold"] else "cpu_seconds"  # a disk is waited for
    rates = {name: [run["tokens"] / run[kind] for run in all_] for name, all_ in runs.items() if all_[0]}
    unchecked = _ratios(rates, "tokenmill-unchecked")
    return cell | {
        "tokens_per_second_of": "wall clock" if cell["cold"] else "one core",
        "tokens_per_second": {
            name: {"median": round(median(found)), "min": round(min(found)), "max": round(max(found))}
            for name, found in rates.items()
        },
        "tokenmill_to": _ratios(rates, "tokenmill"),
        "unchecked_to_limit": unchecked.get("limit"),
        "first_batch_seconds": {
            name: round(median(run["first_seconds"] for run in all_), 5) for name, all_ in runs.items() if all_[0]
        },
    }


def _ratios(rates: dict[str, list[float]], ours: str) -> dict[str, float]:
    """Return how many times as fast one of them is as each other, round by round."""
    return {
        name: round(median(mine / its for mine, its in zip(rates[ours], theirs, strict=True)), 3)
        for name, theirs in rates.items()
        if ours in rates and name != ours
    }


def _held(output: Path) -> dict[str, Any]:
    """Return the result that is there."""
    file = output / "loader.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _batch_sizes(directory: Path, rounds: int) -> dict[str, Any]:
    about = about_this_run()
    cells = measure_batch_sizes(directory.absolute(), rounds)
    print_batch_sizes(cells, console)
    return {"batch_sizes": {"of": about, "cells": cells}}


def _gpu(directory: Path, rounds: int) -> dict[str, Any]:
    """Return what a GPU gets; nothing where there is none."""
    about = about_this_run()
    found = measure_gpu(directory.absolute(), rounds)
    if found is None:
        return {}
    print_gpu(found, console)
    about |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    return {"gpu": {"of": about} | found}


if __name__ == "__main__":
    typer.run(main)
