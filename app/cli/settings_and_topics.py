"""``tokenmill config``, ``version`` and ``topics``: the settings in force, and the topics that they need."""

import asyncio
from typing import Annotated, Final

import typer
from rich.table import Table

import tokenmill
from tokenmill.errors import TopicError

from ..settings import Loaded, Settings
from ..settings.values import as_variable
from .options import examples, with_loaded, with_settings
from .output import AsJson, count, say, show, show_json, show_table

FILE_WIDTH: Final = 200
"""Characters of a line where no terminal shows it: names, values and variables fit without a break."""

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


def create(settings: Settings, *, partitions: Partitions = None, as_json: AsJson = False) -> None:
    """Create the topics that are missing: dead letters, and each stream's tokens and control, kept for ever.

    Token topics also get the partitions that their raw topic has gained. Raw topics are created with --partitions.
    """
    from ..kafka.topics import ensure_topics  # noqa: PLC0415 - `config` and `version` need no Kafka client

    changed = asyncio.run(ensure_topics(settings, partitions=partitions))
    if as_json:
        show_json(changed)
        return
    for name in changed:
        show(name)
    say(f"created or extended {count(len(changed), 'topic')}" if changed else "all topics are there")


def check(settings: Settings, *, as_json: AsJson = False) -> None:
    """Say what is wrong with the topics: partitions, compaction, retention, sizes. Exit code 4 on an error."""
    from ..kafka.topics import check_topics  # noqa: PLC0415 - as above

    problems = asyncio.run(check_topics(settings))
    if as_json:
        show_json([problem._asdict() for problem in problems])
    else:
        for problem in problems:
            show(f"{problem.severity}: topic {problem.topic} {problem.text}")
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(TopicError.exit_code)
    say("all topics keep the promises" if not problems else count(len(problems), "warning"))
