"""``tokenmill broker``, ``up`` and ``demo``: a local Kafka, with the service, and with all of it in two minutes."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.errors import BrokerError

from ..local.broker import Broker
from ..local.demo_plan import FEED_SECONDS, TRAIN_SECONDS, DemoPlan, own_text, standard_library
from ..local.local_state import DEMO_DIRECTORY, LocalState
from ..local.output_files import require_directory
from ..settings import Loaded
from .options import examples, with_loaded
from .output import AsJson, data, say, show, show_json
from .produce import parse_rate

DEFAULT_DIRECTORY = Path(".tokenmill/broker")
DEFAULT_PORT = 9092  # Kafka's own, and so the default of bootstrap_servers

Directory = Annotated[Path, typer.Option("--directory", help="Where the broker keeps all that it writes.")]
StateDirectory = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Where all of it is kept; a new directory is a new beginning.")
]
Partitions = Annotated[int, typer.Option(min=1, help="Partitions of raw topics that are made.")]
Port = Annotated[
    int | None, typer.Option(help="Kafka's port on 127.0.0.1; default: the one of last time, at first a free one.")
]

Text = Annotated[
    Path | None, typer.Option(metavar="PATH", help="A file or folder of your own; default: the standard library.")
]
Train = Annotated[bool, typer.Option("--train/--no-train", help="Train a tiny GPT meanwhile (needs torch).")]
Rate = Annotated[str | None, typer.Option(metavar="SIZE", help="Feed as much a second, as 2MB.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Feed for about as long, where there is no --rate.")]
TrainSeconds = Annotated[float, typer.Option(min=1, help="Train for as long.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="A local Kafka broker: start, stop, status.", no_args_is_help=True)
    group.command(epilog=examples("tokenmill broker start", "tokenmill broker start --port 19092"))(start)
    group.command()(stop)
    group.command()(status)
    app.add_typer(group, name="broker")
    app.command("demo", epilog=examples("tokenmill demo", "tokenmill demo --text ~/notes --no-train"))(demo)
    app.command("up", epilog=examples("tokenmill up", "tokenmill up --state ~/try --raw-topics notes,mail"))(
        with_loaded(up, "raw_topics", "tokenizer", "sequence_length", "store", "workers")
    )


def start(
    directory: Directory = DEFAULT_DIRECTORY,
    port: Annotated[int, typer.Option(help="Port for clients on 127.0.0.1.")] = DEFAULT_PORT,
) -> None:
    """Start a broker that goes on after this command; prints its address.

    The first start downloads Kafka (45 MB).
    """
    require_directory("--directory", directory)
    broker = Broker(directory, port=port)
    say(f"starting Kafka in {directory}")
    broker.start(detached=True)
    show(broker.bootstrap_servers)


def stop(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Stop the broker; what it holds stays on disk."""
    Broker.attach(directory).stop()
    say("stopped")


def status(directory: Directory = DEFAULT_DIRECTORY, *, as_json: AsJson = False) -> None:
    """Print the running broker's address; exit code 3 when none runs."""
    if not as_json:
        show(Broker.attach(directory).bootstrap_servers)
        return
    broker = Broker(directory)
    show_json({"running": broker.running, "bootstrap_servers": broker.bootstrap_servers, "directory": str(directory)})
    if not broker.running:
        raise typer.Exit(BrokerError.exit_code)


def up(
    loaded: Loaded, *, state: StateDirectory = DEMO_DIRECTORY, partitions: Partitions = 4, port: Port = None
) -> None:
    """Run a local Kafka and the whole service until Ctrl-C, and show what they do.

    On the demo's state, if nothing else is said, with the settings of its last run.
    """
    from ..local.up import run_up, settings_in  # noqa: PLC0415 - `broker` needs no service

    place = LocalState(state.absolute())
    require_directory("--state", state)
    raise typer.Exit(run_up(place, settings_in(place, loaded), data(), partitions=partitions, port=port))


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
    from ..local.demo_run import run_demo  # noqa: PLC0415 - `broker` needs no service

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
