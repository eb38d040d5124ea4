"""``tokenmill demo``: all of it in two minutes."""

from pathlib import Path
from typing import Annotated

import typer

from ..local.demo_plan import FEED_SECONDS, TRAIN_SECONDS, DemoPlan, own_text, standard_library
from ..local.demo_run import run_demo
from ..local.local_state import DEMO_DIRECTORY
from ..local.output_files import require_directory
from .options import examples
from .output import data
from .produce import parse_rate

Text = Annotated[
    Path | None, typer.Option(metavar="PATH", help="A file or folder of your own; default: the standard library.")
]
Train = Annotated[bool, typer.Option("--train/--no-train", help="Train a tiny GPT meanwhile (needs torch).")]
Rate = Annotated[str | None, typer.Option(metavar="SIZE", help="Feed as much a second, as 2MB.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Feed for about as long, where there is no --rate.")]
TrainSeconds = Annotated[float, typer.Option(min=1, help="Train for as long.")]
StateDirectory = Annotated[Path, typer.Option("--state", metavar="DIR", help="Directory of all that the demo keeps.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", epilog=examples("tokenmill demo", "tokenmill demo --text ~/notes --no-train"))(demo)


def demo(
    *,
    text: Text = None,
    train: Train = True,
    rate: Rate = None,
    seconds: Seconds = FEED_SECONDS,
    train_seconds: TrainSeconds = TRAIN_SECONDS,
    state: StateDirectory = DEMO_DIRECTORY,
) -> None:
    """Watch text flow through a real Kafka into blocks and a training run, a killed worker, and the proof at the end.

    Each run has a raw topic of its own; what earlier runs made stays. Exit code 1 when a block is not as it must be.
    """
    require_directory("--state", state)
    plan = DemoPlan(
        directory=state,
        text=standard_library() if text is None else own_text(text),
        train=train,
        rate=parse_rate(rate),
        seconds=seconds,
        train_seconds=train_seconds,
    )
    raise typer.Exit(run_demo(plan, data()))
