"""``python -m benchmarks.produce``: JSON lines into a raw topic, beside loops written by hand (`README.md`)."""

import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import make_topics
from benchmarks.corpus import documents
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

DIRECTORY: Final = Path(".tokenmill/produce")
SIZES: Final = {3_700: 200_000_000, 200: 40_000_000}
"""Bytes of text of a document, and of all of them."""
HAND_WRITTEN: Final = Path(__file__).with_name("contenders") / "hand_written_producer.py"

console = Console(width=140, highlight=False)


Command = Callable[[str, str, Path], list[str]]
CONTENDERS: Final[Mapping[str, Command]] = {
    "tokenmill produce": lambda servers, topic, file: [
        *(sys.executable, "-m", "tokenmill.app.cli", "produce", topic, str(file)),
        *("--bootstrap-servers", servers, "--restart"),
    ],
    "confluent-kafka, parsing each line": lambda servers, topic, file: [
        *(sys.executable, str(HAND_WRITTEN), servers, topic, str(file), "--parse"),
    ],
    "confluent-kafka, looking at nothing": lambda servers, topic, file: [
        *(sys.executable, str(HAND_WRITTEN), servers, topic, str(file)),
    ],
}


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often each runs.", min=1)] = 3,
    share: Annotated[float, typer.Option(help="Of the text; less to see that it works.")] = 1.0,
    directory: Annotated[Path, typer.Option(help="Where broker and files go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where produce.json goes.")] = RESULTS,
) -> None:
    """Measure CPU seconds of the producing process, print a table, and write `produce.json`."""
    result: dict[str, Any] = {
        **about_this_run(),
        "rounds": rounds,
        "cells": [],
    }
    with workplace(directory), Broker(directory / "broker") as broker:
        for size, total in SIZES.items():
            with console.status(f"documents of {size} bytes"):
                cell = _cell(broker, directory, size, int(total * share), rounds)
            result["cells"].append(cell)
            _print(cell)
    write_result(output, "produce.json", result)


def _cell(broker: Broker, directory: Path, size: int, total: int, rounds: int) -> dict[str, Any]:
    """Return megabytes of text for each CPU second, starting left out, by contender, and ratios within a round."""
    file, short = directory / f"{size}.jsonl", directory / "one.jsonl"
    text_bytes = 0
    with file.open("wb") as lines:
        for document in documents(size, total):
            lines.write(document.value + b"\n")
            text_bytes += len(document.text.encode())
    short.write_bytes(b'{"id": 1, "text": "one"}\n')
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        names = list(CONTENDERS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            topic = f"{size}-{number}-{names.index(name)}"
            make_topics(Settings(bootstrap_servers=broker.bootstrap_servers), [topic])
            command = CONTENDERS[name]
            start = _run(command(broker.bootstrap_servers, topic, short))
            whole = _run(command(broker.bootstrap_servers, topic, file))
            found[name].append(whole - start)
    own = found["tokenmill produce"]
    return {
        "document_bytes": size,
        "text_mb": round(text_bytes / 1e6, 1),
        "text_mb_per_cpu_s": {name: _spread(text_bytes, costs) for name, costs in found.items()},
        "cpu_ratio": {
            name: round(median(cost / mine for cost, mine in zip(costs, own, strict=True)), 2)
            for name, costs in found.items()
        },
    }


def _spread(text_bytes: int, seconds: list[float]) -> dict[str, float]:
    rates = sorted(text_bytes / 1e6 / s for s in seconds)
    return {"median": round(median(rates), 1), "min": round(rates[0], 1), "max": round(rates[-1], 1)}


def _run(command: list[str]) -> float:
    """Run a process to its end; return the CPU seconds of all its threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _print(cell: dict[str, Any]) -> None:
    title = f"{cell['text_mb']} MB of text in documents of {cell['document_bytes']} bytes: median (lowest to highest)"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("", "MB of text for a CPU second", "CPU seconds : tokenmill's"):
        table.add_column(name, justify="right" if name else "left")
    for name in CONTENDERS:
        cost = cell["text_mb_per_cpu_s"][name]
        shown = f"{cost['median']:.0f} ({cost['min']:.0f} to {cost['max']:.0f})"
        table.add_row(name, shown, f"{cell['cpu_ratio'][name]:.2f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
