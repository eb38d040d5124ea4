"""``tokenmill skip`` and ``tokenmill ignore``: a record that workers cannot process, a message that no reader takes."""

import asyncio
from typing import Annotated

import typer

from ..settings import Settings
from ..tools.skip_and_ignore import ignore, skip
from .options import examples, with_settings
from .output import AsJson, say, show, show_json

RawTopic = Annotated[str, typer.Argument(metavar="RAW_TOPIC", help="The raw topic.", show_default=False)]
RecordPartition = Annotated[int, typer.Argument(help="The record's partition.", show_default=False)]
RecordOffset = Annotated[int, typer.Argument(help="The record's offset.", show_default=False)]
TokenTopic = Annotated[str, typer.Argument(metavar="TOKEN_TOPIC", help="The token topic.", show_default=False)]
MessagePartition = Annotated[int, typer.Argument(help="The message's partition.", show_default=False)]
MessageOffset = Annotated[int, typer.Argument(help="The message's offset.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("skip", epilog=examples("tokenmill skip raw-text 0 1234"))(with_settings(skip_command))
    app.command("ignore", epilog=examples("tokenmill ignore tokens.raw-text.train 0 1234"))(
        with_settings(ignore_command)
    )


def skip_command(
    settings: Settings, topic: RawTopic, partition: RecordPartition, offset: RecordOffset, *, as_json: AsJson = False
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


def ignore_command(
    settings: Settings,
    topic: TokenTopic,
    partition: MessagePartition,
    offset: MessageOffset,
    *,
    as_json: AsJson = False,
) -> None:
    """Let all readers of a token topic pass over a message that none of them takes: it is not the mill's.

    Mills and stores that halted there go on within seconds; `tokenmill inspect stream` shows the ignore list. A message
    that continues its chain is refused, and is never left out, whatever the list says.
    """
    found = asyncio.run(ignore(settings, topic, partition, offset))
    if as_json:
        show_json(
            {"topic": topic, "partition": partition, "offset": offset, "stream": found.stream, "reason": found.reason}
        )
        return
    show(found.stream)
    say(f"readers of {topic}[{partition}] pass over offset {offset} from now on: {found.reason}")
