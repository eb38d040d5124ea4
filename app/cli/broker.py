"""``tokenmill broker``: a Kafka of one's own, for a first try, the demo and the tests."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.errors import BrokerError

from ..local.broker import Broker
from ..local.output_files import require_directory
from .options import examples
from .output import AsJson, say, show, show_json

DEFAULT_DIRECTORY = Path(".tokenmill/broker")
DEFAULT_PORT = 9092  # Kafka's own, and so the default of bootstrap_servers

Directory = Annotated[Path, typer.Option("--directory", help="Where the broker keeps all that it writes.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="A local Kafka broker: start, stop, status.", no_args_is_help=True)
    group.command(epilog=examples("tokenmill broker start", "tokenmill broker start --port 19092"))(start)
    group.command()(stop)
    group.command()(status)
    app.add_typer(group, name="broker")


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
