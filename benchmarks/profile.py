"""``make profile``: flame graphs of a mill worker and of a segment worker under load."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from benchmarks.field import CONTENDERS, DOCUMENTS, OURS
from benchmarks.rounds import Track
from benchmarks.sampling import flame_graphs
from benchmarks.workplace import RESULTS, gpt2_in, workplace
from tokenmill.app.local.broker import Broker

DIRECTORY: Final = Path(".tokenmill/profile")

console = Console(highlight=False)


def main(
    *,
    native: Annotated[bool, typer.Option(help="Show functions of C and Rust, too; slows the workers.")] = False,
    directory: Annotated[Path, typer.Option(help="Where broker, logs and stores go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where the pictures go.")] = RESULTS,
) -> None:
    """Mill each kind of documents once with one worker, and draw what the two processes were at."""
    output.mkdir(parents=True, exist_ok=True)
    options = ["--native"] if native else ["--nonblocking"]
    ours = next(contender for contender in CONTENDERS if contender.name == OURS)
    with (
        workplace(directory),
        Broker(directory / "broker", settings={"group.initial.rebalance.delay.ms": "0"}) as broker,
    ):
        track = Track(broker, directory / "runs", gpt2_in(directory))
        for documents in DOCUMENTS:
            watching = partial(flame_graphs, output=output, name=documents.name.replace(" ", ""), options=options)
            with console.status(f"documents of {documents.name}"):
                _, drawn = track.watch(ours, documents, watching)
            for file in drawn:
                console.print(str(file))


if __name__ == "__main__":
    typer.run(main)
