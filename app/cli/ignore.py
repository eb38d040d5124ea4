"""``tokenmill ignore``: a message on a token topic that no reader takes."""

import asyncio
from typing import Annotated

import typer

from ..settings import Settings
from ..tools.skip_and_ignore import ignore
from .options import examples, with_settings
from .output import AsJson, say, show, show_json

Topic = Annotated[str, typer.Argument(metavar="TOKEN_TOPIC", help="The token topic.", show_default=False)]
Partition = Annotated[int, typer.Argument(help="The message's partition.", show_default=False)]
Offset = Annotated[int, typer.Argument(help="The message's offset.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ignore", epilog=examples("tokenmill ignore tokens.raw-text.train 0 1234"))(
        with_settings(ignore_command)
    )


def ignore_command(
    settings: Settings, topic: Topic, partition: Partition, offset: Offset, *, as_json: AsJson = False
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
