"""``tokenmill serve``, ``mill`` and ``segment``: the whole service with its children, or one worker as this process."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tokenmill.errors import TokenMillError

from ..kafka.settled_streams import require_ready
from ..logs import set_up_logging
from ..process import allow_more_files
from ..settings import Settings
from ..supervisor import Supervisor, WatchLimits, run_until_signalled
from ..telemetry.reporting import last_words
from .options import examples, with_settings

if TYPE_CHECKING:  # loads Faust, which takes longer than most other commands take to run
    from ..worker.transport import BatchApp

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
    """Add the commands."""
    commands = ("tokenmill serve", "tokenmill serve --workers 4 --log-format json", "tokenmill serve --only segment")
    shown = ("bootstrap_servers", "raw_topics", "tokenizer", "sequence_length", "store", "workers")
    app.command("serve", epilog=examples(*commands))(with_settings(serve, *shown))
    app.command("mill", epilog=examples("tokenmill mill", "tokenmill mill --log-format json"))(
        with_settings(mill, "bootstrap_servers", "raw_topics", "tokenizer", "sequence_length")
    )
    app.command("segment", epilog=examples("tokenmill segment", "tokenmill segment --log-format json"))(
        with_settings(segment, "bootstrap_servers", "store", "raw_topics")
    )


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
        await require_ready(settings)  # what is wrong from the beginning is said once, not by every worker
        await supervisor.run()
        return 0

    raise typer.Exit(run_until_signalled(run(), serves=True))


def mill(settings: Settings) -> None:
    """Run one worker that turns raw topics into token topics, until it is told to end.

    It ends with 75 where a new start helps: `tokenmill serve` does that. Each start continues where the last one ended.
    """
    # Here, because Faust takes longer to load than most other commands to run.
    from ..mill.app import create_app  # noqa: PLC0415

    _run_worker(settings, create_app)


def segment(settings: Settings) -> None:
    """Run one worker that appends token topics to the store, until it is told to end.

    It ends with 75 where a new start helps: `tokenmill serve` does that. Each start continues where the last one ended.
    """
    from ..segments.app import create_app  # noqa: PLC0415 - as above

    _run_worker(settings, create_app)


def _run_worker(settings: Settings, create_app: Callable[[Settings], "BatchApp"]) -> None:
    from ..worker.run import run_worker  # noqa: PLC0415 - as above

    try:
        app = create_app(settings)
    except TokenMillError as error:
        last_words(str(error))  # the supervisor repeats them when it gives up
        raise
    run_worker(app, settings)
