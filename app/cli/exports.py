"""What leaves a store: ``tokenmill export`` in a format that others read, ``tokenmill describe`` says what it is."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from ..settings import Settings
from ..tools.describe import add_broker_facts, card, croissant, store_facts
from ..tools.export import FORMATS, FormatChoice, What, export
from .options import OneStream, examples, with_settings
from .output import AsJson, PlainColumn, count, say, show, show_json, show_page
from .progress import ProgressLine

To = Annotated[FormatChoice, typer.Option("--to", metavar="FORMAT", help=f"{', '.join(FORMATS)}.", show_default=False)]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The folder: new, or of the same export.", show_default=False)
]
Rows = Annotated[What, typer.Option("--what", metavar="ROWS", help=f"What a row is: {' or '.join(get_args(What))}.")]
Description = Literal["card", "croissant", "json"]
As = Annotated[Description, typer.Option("--format", metavar="FORMAT", help=f"{', '.join(get_args(Description))}.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no broker: what the store knows.")]
Sha = Annotated[
    bool,
    typer.Option("--hashes", help="SHA-256s of sealed segments, which reads them all; croissant always has them."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "export",
        epilog=examples(
            "tokenmill export raw-text.train --to lance --out /data/train.lance",
            "tokenmill export raw-text.train --to parquet --what documents --out /data/train",
        ),
    )(with_settings(export_command, "store"))
    app.command(
        "describe",
        epilog=examples(
            "tokenmill describe raw-text.train > README.md",
            "tokenmill describe raw-text.train --format croissant --offline > croissant.json",
        ),
    )(with_settings(describe_command, "store", "bootstrap_servers"))


def export_command(
    settings: Settings, stream: OneStream, *, to: To, out: Out, what: Rows = "blocks", as_json: AsJson = False
) -> None:
    """Write the segments of a stream in the store in a format of others, with ids and metadata; no broker.

    They are the sealed ones, and of a stream that has ended all. Given again, the same command adds what was sealed
    since; interrupted, it goes on. docs/export.md says how each format is read.
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
            f"not yet: {', '.join(result.waiting)} (partition/first block): what belongs there goes on behind what the "
            "store holds; the same command writes them later"
        )


def describe_command(
    settings: Settings, stream: OneStream, *, description: As = "card", offline: Offline = False, with_sha: Sha = False
) -> None:
    """Say what a stream in the store is: sources, recipe, tokenizer, counts, retention, checksums.

    As a card, for people and hubs; --format json has the same for machines. Facts alone: from the store, and from the
    brokers where they answer. What is not known is left open and named.
    """
    facts = store_facts(settings.store, stream, with_sha256=with_sha or description == "croissant")
    asyncio.run(add_broker_facts(facts, None if offline else settings))
    if description == "card":
        told = card(facts)
    else:
        told = json.dumps(croissant(facts) if description == "croissant" else facts.to_dict(), indent=2)
    show_page(told)
    if description == "croissant":  # the others have it in them
        for name, why in facts.unknown.items():
            say(f"not known: {name}: {why}")
