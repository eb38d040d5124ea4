"""``tokenmill segment``: one segment worker as this process."""

import typer

from tokenmill.errors import TokenMillError

from ..ending import end_for
from ..segment import create_app
from ..settings import Settings
from ..worker import run_worker
from .options import examples, with_settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("segment", epilog=examples("tokenmill segment", "tokenmill segment --log-format json"))(with_settings(segment))


def segment(settings: Settings) -> None:
    """Run one worker that appends token topics to the store, until it is told to end.

    It ends with 75 where a new start continues: `tokenmill serve` does that. A new start continues where this one ended.
    """
    try:
        app = create_app(settings)
    except TokenMillError as error:
        end_for(error)
    run_worker(app, settings)
