"""``tokenmill segment``: one segment worker as this process."""

import typer

from tokenmill.errors import TokenMillError

from ..settings import Settings
from ..telemetry.heartbeat import last_words
from .options import examples, with_settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("segment", epilog=examples("tokenmill segment", "tokenmill segment --log-format json"))(
        with_settings(segment, "bootstrap_servers", "store", "raw_topics")
    )


def segment(settings: Settings) -> None:
    """Run one worker that appends token topics to the store, until it is told to end.

    It ends with 75 where a new start helps: `tokenmill serve` does that. Each start continues where the last one ended.
    """
    # Here, because Faust takes longer to load than most other commands to run.
    from ..segments.app import create_app  # noqa: PLC0415
    from ..worker.run import run_worker  # noqa: PLC0415

    try:
        app = create_app(settings)
    except TokenMillError as error:
        last_words(str(error))  # the supervisor repeats them when it gives up
        raise
    run_worker(app, settings)
