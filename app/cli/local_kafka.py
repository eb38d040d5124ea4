"""``tokenmill broker``, ``up`` and ``demo``: a local Kafka, with the service, and with all of it in two minutes."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.errors import BrokerError

from ..local import local_state as local
from ..local.broker import Broker
from ..settings import Loaded
from .options import AsJson, command, option, require_directory
from .output import EscapingConsole, say, show, show_json
from .produce import parse_rate

DEFAULT_DIRECTORY = Path(".tokenmill/broker")
DEFAULT_PORT = 9092  # Kafka's own, and so the default of bootstrap_servers

Directory = Annotated[Path, option("Where the broker keeps all that it writes.")]
StateDirectory = Annotated[
    Path, option("Where all of it is kept; a new directory is a new beginning.", "DIR", "--state")
]


@command("broker start", "tokenmill broker start", "tokenmill broker start --port 19092")
def start(
    directory: Directory = DEFAULT_DIRECTORY,
    port: Annotated[int, option("Port for clients on 127.0.0.1.")] = DEFAULT_PORT,
) -> None:
    """Start a broker that goes on after this command; prints its address.

    The first start downloads Kafka (45 MB).
    """
    require_directory("--directory", directory)
    broker = Broker(directory, port=port)
    say(f"starting Kafka in {directory}")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C: Kafka has not started then
    broker.start(detached=True)
    show(broker.bootstrap_servers)


@command("broker stop")
def stop(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Stop the broker; what it holds stays on disk."""
    Broker.attach(directory).stop()
    say("stopped")


@command("broker status")
def status(directory: Directory = DEFAULT_DIRECTORY, *, as_json: AsJson = False) -> None:
    """Print the running broker's address; exit code 3 when none runs."""
    if not as_json:
        show(Broker.attach(directory).bootstrap_servers)
        return
    broker = Broker(directory)
    show_json({"running": broker.running, "bootstrap_servers": broker.bootstrap_servers, "directory": str(directory)})
    if not broker.running:
        raise typer.Exit(BrokerError.exit_code)


@command(
    "up",
    "tokenmill up",
    "tokenmill up --state ~/try --raw-topics notes,mail",
    shown=("raw_topics", "tokenizer", "sequence_length", "store", "workers"),
)
def up(
    loaded: Loaded,
    *,
    state: StateDirectory = local.DEMO_DIRECTORY,
    partitions: Annotated[int, option("Partitions of raw topics that are made.", min=1)] = 4,
    port: Annotated[
        int | None, option("Kafka's port on 127.0.0.1; default: the one of last time, at first a free one.")
    ] = None,
) -> None:
    """Run a local Kafka and the whole service until Ctrl-C, and show what they do.

    On the demo's state, if nothing else is said, with the settings of its last run.
    """
    from ..local.up import run_up, settings_in  # noqa: PLC0415 - `broker` needs no service

    place = local.LocalState(state.absolute())
    require_directory("--state", state)
    settings, said = settings_in(place, loaded), loaded.settings.model_fields_set
    origins = {name: loaded.origins[name] if name in said else f"{place.settings_file}" for name in loaded.origins}
    code = run_up(place, settings, EscapingConsole(), partitions=partitions, port=port, origins=origins)
    raise typer.Exit(code)


@command("demo", "tokenmill demo", "tokenmill demo --text ~/notes --no-train")
def demo(
    *,
    text: Annotated[Path | None, option("A file or folder of your own; default: the standard library.", "PATH")] = None,
    train: Annotated[bool, option("Train a tiny GPT meanwhile (needs torch).")] = True,
    rate: Annotated[str | None, option("Feed as much a second, as 2MB.", "SIZE")] = None,
    seconds: Annotated[
        float, option("Feed for about as long, where there is no --rate.", min=0.1)
    ] = local.FEED_SECONDS,
    train_seconds: Annotated[float, option("Train for as long.", min=1)] = local.TRAIN_SECONDS,
    state: StateDirectory = local.DEMO_DIRECTORY,
) -> None:
    """Watch text flow through a real Kafka into blocks and a training run, a killed worker, and the proof at the end.

    Each run has a raw topic of its own; what earlier runs made stays. Exit code 1 when a block is not as it must be.
    """
    from ..local.demo import run_demo  # noqa: PLC0415 - `broker` needs no service

    require_directory("--state", state)
    plan = local.DemoPlan(
        directory=state,
        text=local.standard_library() if text is None else local.own_text(text),
        train=train,
        rate=parse_rate(rate),
        seconds=seconds,
        train_seconds=train_seconds,
    )
    raise typer.Exit(run_demo(plan, EscapingConsole()))
