"""``tokenmill config`` and ``tokenmill version``."""

from typing import Final

import typer
from rich.table import Table

import tokenmill

from ..settings import Loaded
from ..settings.values import as_variable
from .options import examples, with_loaded
from .output import AsJson, show, show_json, show_table

FILE_WIDTH: Final = 200
"""Characters of a line where no terminal shows it: names, values and variables fit without a break."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=examples("tokenmill config", "tokenmill config --json --sequence-length 2048"))(
        with_loaded(config)
    )
    app.command()(version)


def config(loaded: Loaded, *, as_json: AsJson = False) -> None:
    """Print the settings in force and where each value came from."""
    values = loaded.settings.model_dump(mode="json")
    if as_json:
        show_json({name: {"value": value, "from": loaded.origins[name]} for name, value in values.items()})
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name in values:
        table.add_row(name, as_variable(getattr(loaded.settings, name)), loaded.origins[name])
    show_table(table, FILE_WIDTH)


def version() -> None:
    """Print the version."""
    show(tokenmill.__version__)
