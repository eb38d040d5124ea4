"""``make bench-mixture``: what mixing streams costs, beside one stream and beside other loaders that mix."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cold import measure_cold
from benchmarks.loaders.place import Stock
from benchmarks.loaders.stock import make_stock
from benchmarks.measuring import BenchmarkError
from benchmarks.mixtures.streams import BATCH, WEIGHTS, names_of
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result

DIRECTORY: Final = Path(".tokenmill/mixture")
PACKAGES: Final = Path(".venv/loader-peers")
"""Where `make bench-mixture` puts the other loaders' packages."""
OURS: Final = ("tokenmill", "tokenmill-mixture-of-one", "tokenmill-one-stream")
MIXING: Final = ("tokenmill", "litdata", "mosaicml-streaming", "datasets")
"""Those that mix."""
STEPS: Final = 400
"""Steps before a state is saved, and after it is loaded."""

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often speeds are measured.", min=1)] = 5,
    blocks: Annotated[int, typer.Option(help="Blocks of 1025 tokens in each of five streams.")] = 65_536,
    seconds: Annotated[float, typer.Option(help="How long each loader reads, twice.")] = 1.0,
    peers: Annotated[bool, typer.Option(help="Measure other loaders as well.")] = True,
    cold: Annotated[bool, typer.Option(help="Measure reading what is on the disk alone.")] = True,
    directory: Annotated[Path, typer.Option(help="Where the tokens go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where mixture.json goes.")] = RESULTS,
) -> None:
    """Measure, print a table, and write `mixture.json`; figures of other parts that are in it stay."""
    about = about_this_run()
    names = [*OURS, *(MIXING[1:] if peers else ())]
    with workplace(directory, log_level="error"):
        place = directory.absolute()
        with console.status("writing stores"):
            stocks = {
                name: make_stock(place / name, blocks=blocks, block_tokens=1025, seed=seed)
                for seed, name in enumerate(WEIGHTS)
            }
        base = {"directory": str(place), "blocks": next(iter(stocks.values())).blocks, "block_tokens": 1025}
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            with console.status(f"writing the files of {name}"):
                found[name] = _alone(name, base | {"do": "prepare"})
        rates: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                with console.status(f"round {number + 1} of {rounds}: {name}"):
                    answer = _alone(name, base | {"do": "speed", "seconds": seconds})
                    rates[name].append(answer["tokens_per_cpu_second"])
        known = _known(stocks)
        for name in names:
            spread = {kind: round(of(rates[name])) for kind, of in (("median", median), ("min", min), ("max", max))}
            found[name] |= {"tokens_per_cpu_second": spread}
            if name in MIXING:
                with console.status(f"shares and resumes of {name}"):
                    found[name] |= _followed(name, base, known)
        with console.status("reading what is on the disk alone"):
            from_disk = measure_cold(place, rounds) if cold else {}
    alone = rates["tokenmill-one-stream"]
    ratios = {
        "mixture_of_one": _ratio(rates["tokenmill-mixture-of-one"], alone),
        "mixture_of_five": _ratio(rates["tokenmill"], alone),
        **{f"to_{name}": _ratio(rates["tokenmill"], rates[name]) for name in names if name not in OURS},
        **{name: from_disk.pop(name) for name in ("cold_of_disk",) if name in from_disk},
    }
    old = json.loads(file.read_text()) if (file := output / "mixture.json").exists() else {}
    kept = {key: value for key, value in old.items() if key not in {*about, "loaders", "weights", "rounds"}}
    ratios = {**old.get("ratios", {}), **ratios}
    result = kept | about | {"weights": WEIGHTS, "rounds": rounds, "loaders": found, "ratios": ratios} | from_disk
    write_result(output, "mixture.json", result)
    _print(found, ratios)


def _alone(name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run one rank of a loader; raises `BenchmarkError` where it fails."""
    done = _begin(name, task)
    return _end(name, done)


def _begin(name: str, task: dict[str, Any]) -> "subprocess.Popen[str]":
    others = [] if name in OURS else [str(PACKAGES.absolute())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*others, str(Path.cwd())]), "HF_HUB_OFFLINE": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    command = [sys.executable, "-m", "benchmarks.mixtures.one", json.dumps(task | {"name": name})]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(name: str, process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    if process.returncode:
        raise BenchmarkError(f"{name} failed: {err[-2000:]}")
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _known(stocks: dict[str, Stock]) -> dict[int, str]:
    """Return the stream of each row, by what it is known by."""
    return {row: name for name, stock in stocks.items() for row in names_of(np.asarray(stock.of_flat()))}


def _followed(name: str, base: dict[str, Any], known: dict[int, str]) -> dict[str, Any]:
    """Return by how much shares are off, and what a resume with two ranks in place of one reads again or leaves out."""
    whole = [row for step in _alone(name, base | {"do": "read", "steps": 2 * STEPS})["rows"] for row in step]
    taken = np.zeros((len(whole), len(WEIGHTS)))
    for place, row in enumerate(whole):
        taken[place, list(WEIGHTS).index(known[row])] = 1
    wanted = np.outer(np.arange(1, len(whole) + 1), list(WEIGHTS.values()))
    off = np.abs(np.cumsum(taken, axis=0) - wanted)
    state = str(Path(base["directory"]) / f"{name}.state")
    first = _alone(name, base | {"do": "read", "steps": STEPS, "save": state})["rows"]
    task = base | {"do": "read", "steps": STEPS, "load": state, "world_size": 2}
    ranks = [_begin(name, task | {"rank": rank}) for rank in range(2)]
    parts: list[Any] = []
    refusals: list[str] = []
    for rank in ranks:
        try:
            parts.append(_end(name, rank)["rows"])
        except (BenchmarkError, subprocess.TimeoutExpired) as error:
            rank.kill()
            refusals += [line for line in str(error).splitlines() if line.strip()][-1:]
    if refusals:  # where one rank ends, the other may only say that it lost it
        causes = [line for line in refusals if "gloo" not in line] or refusals
        return {"off_by_samples": _off(off), "resumed_with_two_ranks": {"refused": causes[0][-300:]}}
    before = [row for step in first for row in step]
    after = [row for steps in zip(*parts, strict=False) for step in steps for row in step]
    expected = whole[len(before) :]
    return {
        "off_by_samples": _off(off),
        "resumed_with_two_ranks": {
            "same_order": after == expected,
            "read_again": len({*before} & {*after}) + len(after) - len({*after}),
            "left_out": len({*expected} - {*after}),
            "of": len(expected),
        },
    }


def _off(off: Any) -> dict[str, float]:
    return {"most": round(float(off.max()), 3), "at_end": round(float(off[-1].max()), 3), "samples": len(off)}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(median(mine / its for mine, its in zip(ours, theirs, strict=True)), 3)


def _print(found: dict[str, dict[str, Any]], ratios: dict[str, float]) -> None:
    table = Table("loader", "M tokens a CPU second", "off by, samples", "resumed with two ranks")
    for name, one in found.items():
        off = one.get("off_by_samples", {}).get("most", "")
        rate = one["tokens_per_cpu_second"]["median"] / 1e6
        table.add_row(name, f"{rate:,.0f}", str(off), escape(str(one.get("resumed_with_two_ranks", ""))))
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in ratios.items()))
    console.print(f"a step takes {BATCH} samples of 1024 tokens")


if __name__ == "__main__":
    typer.run(main)
