"""What leaves a store: ``tokenmill export`` in a format that others read, ``tokenmill describe`` says what it is."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Literal, get_args

from ..settings import Settings
from ..tools.describe import add_broker_facts, card, croissant, store_facts
from ..tools.export import FORMATS, FormatChoice, What, export
from .options import OneStream, command, option
from .output import AsJson, count, say, show, show_json, show_page
from .progress import ProgressLine

Description = Literal["card", "croissant", "json"]


@command(
    "export",
    "tokenmill export raw-text.train --to lance --out /data/train.lance",
    "tokenmill export raw-text.train --to parquet --what documents --out /data/train",
    shown=("store",),
)
def export_command(
    settings: Settings,
    stream: OneStream,
    *,
    to: Annotated[FormatChoice, option(f"{', '.join(FORMATS)}.", "FORMAT", show_default=False)],
    out: Annotated[Path, option("The folder: new, or of the same export.", "DIR", show_default=False)],
    what: Annotated[What, option(f"What a row is: {' or '.join(get_args(What))}.", "ROWS")] = "blocks",
    as_json: AsJson = False,
) -> None:
    """Write the segments of a stream in another library's format, with ids and metadata. No broker is needed.

    They are the sealed ones, and of a stream that has ended all. Given again, the same command adds what was sealed
    since; interrupted, it goes on. docs/export.md says how each format is read.
    """
    with ProgressLine("export") as line:

        def report(done: int, total: int, name: str) -> None:
            line.show(f"{name}, {done} of {count(total, 'segment')} written", done, total)

        result = export(settings.store, stream, out, to=to, what=what, report=report)
    if as_json:
        show_json(result.to_dict())
    else:
        show(
            f"{out}: {count(result.rows, what.removesuffix('s'))}, {count(result.tokens, 'token')} in "
            f"{count(len(result.files), 'file')}; {count(len(result.written), 'segment')} written now"
        )
    if result.unfinished:
        lacking = count(result.unfinished, "document")
        say(f"{lacking} left out, whose last tokens are in no block: the stream was closed without --flush")
    if result.waiting:
        say(
            f"not written yet: {', '.join(result.waiting)} (partition/first block), for their last documents end in "
            "blocks that the store does not hold yet; the same command writes them later"
        )


@command(
    "describe",
    "tokenmill describe raw-text.train > README.md",
    "tokenmill describe raw-text.train --format croissant --offline > croissant.json",
    shown=("store", "bootstrap_servers"),
)
def describe_command(
    settings: Settings,
    stream: OneStream,
    *,
    description: Annotated[Description, option(f"{', '.join(get_args(Description))}.", "FORMAT", "--format")] = "card",
    offline: Annotated[bool, option("Ask no broker: what the store knows.", None, "--offline")] = False,
    with_sha: Annotated[
        bool,
        option("SHA-256s of sealed segments, which reads them all; croissant always has them.", None, "--hashes"),
    ] = False,
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
