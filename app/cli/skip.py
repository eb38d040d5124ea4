"""``tokenmill skip``: a record that workers cannot get over."""

import asyncio
from typing import Annotated

import typer

from ..settings import Settings
from ..tools.skip_and_ignore import skip
from .options import examples, with_settings
from .output import AsJson, say, show, show_json

Topic = Annotated[str, typer.Argument(metavar="RAW_TOPIC", help="The raw topic.", show_default=False)]
Partition = Annotated[int, typer.Argument(help="The record's partition.", show_default=False)]
Offset = Annotated[int, typer.Argument(help="The record's offset.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("skip", epilog=examples("tokenmill skip raw-text 0 1234"))(with_settings(skip_command))


def skip_command(
    settings: Settings, topic: Topic, partition: Partition, offset: Offset, *, as_json: AsJson = False
) -> None:
    """Put a record that hangs or kills workers on the skip list: it is dead-lettered without being tried.

    A running mill ends and starts again within seconds, and skips it from then on; `tokenmill inspect` shows the skip
    list. Refused once a stream has published past the record.
    """
    skipped = asyncio.run(skip(settings, topic, partition, offset))
    if as_json:
        place = {"topic": topic, "partition": partition, "offset": offset}
        show_json({**place, "streams": skipped.streams, "passed": skipped.passed})
        return
    for name in skipped.streams:
        show(name)
    if skipped.passed:
        say(f"left as they are, for they have passed it: {', '.join(skipped.passed)}")
    say(f"the mill of {topic}[{partition}] is asked to skip offset {offset}: it starts again within seconds to do so")
