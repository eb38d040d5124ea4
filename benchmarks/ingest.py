"""``make bench``: TokenMill beside what one would write or install instead, in one go (`benchmarks/README.md`)."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from benchmarks.contenders import Contender
from benchmarks.field import CONTENDERS, DOCUMENTS, QUICK, WORKERS, Documents
from benchmarks.picture import draw
from benchmarks.report import Cell, cell_json, print_cell
from benchmarks.rounds import Run, Track, turned
from benchmarks.where import bars_of, look
from benchmarks.workplace import RESULTS, about_this_run, gpt2_in, workplace, write_result
from tokenmill.app.local.broker import Broker

DIRECTORY: Final = Path(".tokenmill/bench")
GROUP_DELAY_MS: Final = 3000
"""Kafka's own default: both workers of two are members when the group first forms, so neither does the other's work."""

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often each contender runs.", min=1)] = 3,
    quick: Annotated[bool, typer.Option(help="A small run, to see that it works; its numbers say nothing.")] = False,
    slow: Annotated[bool, typer.Option(help="Let the slow contenders take part, too.")] = True,
    picture: Annotated[bool, typer.Option(help="Draw where the CPU seconds go (needs py-spy's right to look).")] = True,
    directory: Annotated[Path, typer.Option(help="Where broker, logs and stores go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where ingest.json and ingest.png go.")] = RESULTS,
) -> None:
    """Measure how fast raw text becomes token blocks on disk, and write `ingest.json`."""
    contenders = [contender for contender in CONTENDERS if slow or not contender.slow]
    kinds, workers = (QUICK, WORKERS[:1]) if quick else (DOCUMENTS, WORKERS)
    result: dict[str, Any] = {
        **about_this_run(),
        "vocabulary": "GPT-2",
        "rounds": 1 if quick else rounds,
        "cells": [],
    }
    delay = {"group.initial.rebalance.delay.ms": "0" if quick else str(GROUP_DELAY_MS)}
    with workplace(directory), Broker(directory / "broker", settings=delay) as broker:
        track = Track(broker, directory / "runs", gpt2_in(directory))
        for documents, count in product(kinds, workers):
            cell = race(track, contenders, documents, count, result["rounds"])
            result["cells"].append(cell)
            print_cell(cell, console)
        if picture:
            with console.status("watching where the CPU seconds go"):
                result["where_cpu_goes"] = look(track, kinds, result["cells"])
            draw(bars_of(result["where_cpu_goes"]), output / "ingest.png")
    write_result(output, "ingest.json", result)
    console.print(f"{output / 'ingest.json'} holds all numbers{', ingest.png where the time goes' if picture else ''}.")


def race(
    track: Track, contenders: Sequence[Contender], documents: Documents, workers: int, rounds: int
) -> dict[str, Any]:
    """Return the numbers of one kind of documents with one number of workers."""
    done: list[Mapping[str, Run]] = []
    for number in range(rounds):
        runs = {}
        for contender in turned(contenders, number):
            what = f"documents of {documents.name}, workers: {workers}, round {number + 1} of {rounds}"
            with console.status(f"{what}: {contender.name}"):
                runs[contender.name] = track.run(contender, documents, workers)
        done.append({contender.name: runs[contender.name] for contender in contenders})
    return cell_json(Cell(documents.name, workers, done))


if __name__ == "__main__":
    typer.run(main)
