"""``tokenmill export``: the sealed segments of a stream in a format that others read."""

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from ..settings import Settings
from ..tools.export import FORMATS, FormatChoice, What, export
from .options import OneStream, examples, with_settings
from .output import AsJson, PlainColumn, count, say, show, show_json
from .progress import ProgressLine

To = Annotated[FormatChoice, typer.Option("--to", metavar="FORMAT", help=f"{', '.join(FORMATS)}.", show_default=False)]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The folder: new, or of the same export.", show_default=False)
]
Rows = Annotated[What, typer.Option("--what", metavar="ROWS", help=f"What a row is: {' or '.join(get_args(What))}.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "export",
        epilog=examples(
            "tokenmill export raw-text.train --to lance --out /data/train.lance",
            "tokenmill export raw-text.train --to parquet --what documents --out /data/train",
        ),
    )(with_settings(export_command, "store"))


def export_command(
    settings: Settings, stream: OneStream, *, to: To, out: Out, what: Rows = "blocks", as_json: AsJson = False
) -> None:
    """Write the sealed segments of a stream in the store in a format of others, with ids and metadata; no broker.

    The files are a function of the segments. Given again, the same command adds what was sealed since; interrupted, it
    goes on. docs/export.md says how each format is read.
    """
    columns = (PlainColumn("export"), BarColumn(), TaskProgressColumn(), PlainColumn("{task.description}"))
    with ProgressLine(*columns, TimeRemainingColumn()) as line:

        def report(done: int, total: int, name: str) -> None:
            line.show(name, done, total, lambda: f"{done} of {count(total, 'segment')} written")

        result = export(settings.store, stream, out, to=to, what=what, report=report)
    if as_json:
        show_json(result.to_dict())
    else:
        show(
            f"{out}: {count(result.rows, what.removesuffix('s'))}, {count(result.tokens, 'token')} in "
            f"{count(len(result.files), 'file')}; {count(len(result.written), 'segment')} written now"
        )
    if result.waiting:
        say(
            f"not yet: {', '.join(result.waiting)} (partition/first block): the last document there goes on behind "
            "what the store holds; the same command writes them later"
        )
