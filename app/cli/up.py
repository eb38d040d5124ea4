"""``tokenmill up``: broker, topics and service in one terminal."""

from pathlib import Path
from typing import Annotated

import typer

from ..local.local_state import DEMO_DIRECTORY, LocalState
from ..local.output_files import require_directory
from ..local.up import run_up, settings_in
from ..settings import Loaded
from .options import examples, with_loaded
from .output import data

StateDirectory = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Where all of it lies; a new directory is a new beginning.")
]
Partitions = Annotated[int, typer.Option(min=1, help="Partitions of raw topics that are made.")]
Port = Annotated[
    int | None, typer.Option(help="Kafka's port on 127.0.0.1; default: the one of last time, at first a free one.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", epilog=examples("tokenmill up", "tokenmill up --state ~/try --raw-topics notes,mail"))(
        with_loaded(up, "raw_topics", "tokenizer", "sequence_length", "store", "workers")
    )


def up(
    loaded: Loaded, *, state: StateDirectory = DEMO_DIRECTORY, partitions: Partitions = 4, port: Port = None
) -> None:
    """Run a local Kafka and the whole service until Ctrl-C, and show what they do.

    On the demo's state, if nothing else is said, with the settings of its last run.
    """
    place = LocalState(state.absolute())
    require_directory("--state", state)
    raise typer.Exit(run_up(place, settings_in(place, loaded), data(), partitions=partitions, port=port))
