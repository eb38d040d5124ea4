"""``tokenmill topics``: the topics that the settings need."""

import asyncio
from typing import Annotated

import typer

from tokenmill.errors import TopicError

from ..kafka.topics import check_topics, ensure_topics
from ..settings import Settings
from .options import examples, with_settings
from .output import AsJson, count, say, show, show_json

Partitions = Annotated[
    int | None, typer.Option(min=1, help="Create missing raw topics too, with this many partitions.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="The topics that the settings need: create, check.", no_args_is_help=True)
    group.command(
        epilog=examples("tokenmill topics create --partitions 4", "tokenmill topics create --raw-topics a,b")
    )(with_settings(create))
    group.command(epilog=examples("tokenmill topics check", "tokenmill topics check --json"))(with_settings(check))
    app.add_typer(group, name="topics")


def create(settings: Settings, *, partitions: Partitions = None, as_json: AsJson = False) -> None:
    """Create the topics that are missing: dead letters, and each stream's tokens and control, kept for ever.

    Token topics also get the partitions that their raw topic has gained. Raw topics are created with --partitions.
    """
    changed = asyncio.run(ensure_topics(settings, partitions=partitions))
    if as_json:
        show_json(changed)
        return
    for name in changed:
        show(name)
    say(f"created or extended {count(len(changed), 'topic')}" if changed else "all topics are there")


def check(settings: Settings, *, as_json: AsJson = False) -> None:
    """Say what is wrong with the topics: partitions, compaction, retention, sizes. Exit code 4 on an error."""
    problems = asyncio.run(check_topics(settings))
    if as_json:
        show_json([problem._asdict() for problem in problems])
    else:
        for problem in problems:
            show(f"{problem.severity}: topic {problem.topic} {problem.text}")
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(TopicError.exit_code)
    say("all topics keep the promises" if not problems else count(len(problems), "warning"))
