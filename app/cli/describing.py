"""``tokenmill describe``: what a data set is, from facts alone."""

import asyncio
import json
from typing import Annotated, Literal, get_args

import typer

from ..settings import Settings
from ..tools.describe import add_broker_facts, card, croissant, store_facts
from .options import OneStream, examples, with_settings
from .output import say, show_page

Description = Literal["croissant", "card", "json"]
As = Annotated[Description, typer.Option("--format", metavar="FORMAT", help=f"{', '.join(get_args(Description))}.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no broker: what the store knows.")]
Sha = Annotated[
    bool,
    typer.Option("--hashes", help="SHA-256s of sealed segments, which reads them all; croissant always has them."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "describe",
        epilog=examples(
            "tokenmill describe raw-text.train --format card > README.md",
            "tokenmill describe raw-text.train --format croissant --offline > croissant.json",
        ),
    )(with_settings(describe_command, "store", "bootstrap_servers"))


def describe_command(
    settings: Settings, stream: OneStream, *, description: As = "json", offline: Offline = False, with_sha: Sha = False
) -> None:
    """Say what a stream in the store is: sources, recipe, tokenizer, counts, retention, checksums.

    Facts alone: from the store, and from the brokers where they answer. What is not known is left open and named.
    """
    facts = store_facts(settings.store, stream, with_sha256=with_sha or description == "croissant")
    asyncio.run(add_broker_facts(facts, None if offline else settings))
    if description == "card":
        told = card(facts)
    else:
        told = json.dumps(croissant(facts) if description == "croissant" else facts.to_dict(), indent=2)
    show_page(told)
    for name, why in facts.unknown.items():
        say(f"not known: {name}: {why}")
