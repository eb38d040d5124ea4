"""``tokenmill serve``: the whole service as this process and its children."""

from typing import Annotated, Literal

import typer

from ..kafka.settled_streams import require_ready
from ..logs import set_up_logging
from ..process import allow_more_files
from ..settings import Settings
from ..supervisor import Supervisor, WatchLimits, run_until_signalled
from .options import examples, with_settings

DEFAULTS = WatchLimits()

Heartbeat = Annotated[
    float, typer.Option("--heartbeat-seconds", min=2, help="Kill a worker that is silent for as long.")
]
Only = Annotated[
    Literal["mill", "segment"] | None,
    typer.Option(help="Run mill workers alone, or a segment worker alone: a container's share of the service."),
]
Grace = Annotated[float, typer.Option("--grace-seconds", min=0, help="Time that workers have to end in order.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = ("tokenmill serve", "tokenmill serve --workers 4 --log-format json", "tokenmill serve --only segment")
    shown = ("bootstrap_servers", "raw_topics", "tokenizer", "sequence_length", "store", "workers")
    app.command("serve", epilog=examples(*commands))(with_settings(serve, *shown))


def serve(
    settings: Settings,
    *,
    only: Only = None,
    heartbeat: Heartbeat = DEFAULTS.heartbeat,
    grace: Grace = DEFAULTS.grace,
) -> None:
    """Run mill workers and a segment worker, starting each again when it ends, until Ctrl-C or SIGTERM (exit code 0).

    Ends with a worker's exit code when a new start cannot help: wrong settings, a missing topic, a foreign store. A
    broker that goes away later is waited for, and one that is not there yet for --wait-seconds.
    """
    set_up_logging(settings.log_format, settings.log_level)
    allow_more_files()
    supervisor = Supervisor(settings, only=only, limits=WatchLimits(heartbeat=heartbeat, grace=grace))

    async def run() -> int:
        await require_ready(settings)  # what is wrong from the beginning is told once, not by every worker
        await supervisor.run()
        return 0

    raise typer.Exit(run_until_signalled(run(), serves=True))
