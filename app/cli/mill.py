"""``tokenmill mill``: one mill worker as this process."""

import typer

from tokenmill.errors import TokenMillError

from ..ending import end_for
from ..mill import create_app
from ..settings import Settings
from ..worker import run_worker
from .options import examples, with_settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mill", epilog=examples("tokenmill mill", "tokenmill mill --log-format json"))(with_settings(mill))


def mill(settings: Settings) -> None:
    """Run one worker that turns raw topics into token topics, until it is told to end.

    It ends with 75 where a new start continues: `tokenmill serve` does that. A new start continues where this one ended.
    """
    try:
        app = create_app(settings)
    except TokenMillError as error:
        end_for(error)
    run_worker(app, settings)
