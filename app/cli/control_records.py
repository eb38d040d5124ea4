"""``tokenmill eras``, ``close``, ``skip`` and ``ignore``: what control topics say, and what people write there.

Which blocks are trainable together, and that no more will come; a record that workers cannot process, a message that no
reader takes.
"""

import asyncio
import time
from typing import Annotated

from tokenmill.eras import Era, EraFollower, EraLog
from tokenmill.errors import InputError
from tokenmill.store import open_eras
from tokenmill.store.layout import SOURCE_FILE, ending

from ..kafka.clients import consumer
from ..kafka.control_topic import read_eras, settled_stream, write_control
from ..mill.era_closing import EraCloser, Extents
from ..settings import Settings
from ..tables import ShownTable
from ..tools.inspect.packed import StoredPack
from ..tools.skip_and_ignore import ignore, skip, skip_schema
from .options import OneStream, RawTopic, argument, command, option
from .output import AsJson, DryRun, Yes, agree, asks, count, say, show, show_json, show_table


@command("eras", "tokenmill eras raw-text.train", "tokenmill eras raw-text.train --json", bucket=True)
def eras_command(
    settings: Settings,
    stream: OneStream,
    *,
    last: Annotated[int, option("Show so many, the newest ones.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the eras of a stream: the sets of blocks that become trainable, and are shuffled, together."""
    eras = asyncio.run(_read(settings, stream))
    if as_json:
        described = [
            {
                "era": era.number,
                "closed": era.closed,
                "blocks": era.blocks,
                "end": era.end,
                "ranges": [[part.first, part.stop] for part in era.ranges],
                "hash": era.hash.hex(),
            }
            for era in eras[-last:]
        ]
        show_json({"stream": stream, "eras": described})
        return
    show_table(eras_table(eras[-last:]))
    if not eras:
        say(f"{stream} has no era yet: a mill closes one as soon as there are blocks, and era_max_seconds have passed")


@command("close", "tokenmill close raw-text.train")
def close_command(settings: Settings, stream: OneStream, *, dry: DryRun = False, yes: Yes = False) -> None:
    """Declare a stream complete: the blocks that are left become an era, and no era follows it.

    Runs over the stream end there. Nothing milled later is ever trained on; stop the producers first, and flush. This
    cannot be undone; more text wants a new stream (stream_suffix). On a terminal, this asks first.
    """
    if StoredPack.find(settings.store, stream) is not None:
        raise InputError(f"{stream} in {settings.store} was packed: {ending(settings.store, stream)} closes it")
    if dry or asks(yes=yes):
        before, left = asyncio.run(_eras_and_blocks_left(settings, stream))
        summary = f"{stream} has {count(len(before), 'era')}, and {count(left, 'block')} in none"
        if before and before[-1].end:
            summary = f"{stream} is closed already, after {count(len(before) - 1, 'era')}"
        if dry:
            say(f"{summary}; nothing was done")
            return
        if not (before and before[-1].end):
            agree(
                f"{summary}. Closing makes these the last era, and cannot be undone: what is milled into this stream "
                "later is never trained on"
            )
    eras = asyncio.run(_close(settings, stream))
    blocks = sum(era.blocks for era in eras)
    say(f"{stream} is closed after {count(len(eras) - 1, 'era')} with {count(blocks, 'block')}")


@command("skip", "tokenmill skip raw-text 0 1234", "tokenmill skip raw-text --schema-id 77")
def skip_command(
    settings: Settings,
    topic: RawTopic,
    partition: Annotated[int | None, argument("The record's partition.")] = None,
    offset: Annotated[int | None, argument("The record's offset.")] = None,
    *,
    schema_id: Annotated[int | None, option("Skip all records that name this schema, and are not milled yet.")] = None,
    as_json: AsJson = False,
) -> None:
    """Put a record that hangs or kills workers on the skip list: it is dead-lettered without being tried.

    With --schema-id, all records that wait for a schema which the registry does not have: those of all partitions, or
    of one, that are there now. A running mill ends and starts again within seconds, and skips them from then on;
    `tokenmill inspect` shows the skip list. Refused once a stream has published past the record.
    """
    place = {"topic": topic, "partition": partition, "offset": offset}
    if schema_id is not None:
        if offset is not None:
            raise InputError("--schema-id skips all records of a schema: leave the offset out")
        counts = asyncio.run(skip_schema(settings, topic, schema_id, partition))
        if as_json:
            show_json({**place, "schema_id": schema_id, "records": counts})
        for number, records in counts.items():
            say(f"the mill of {topic}[{number}] is asked to skip {count(records, 'record')} of schema {schema_id}")
        return
    if partition is None or offset is None:
        raise InputError("give the record's partition and offset, or --schema-id")
    skipped = asyncio.run(skip(settings, topic, partition, offset))
    if as_json:
        show_json({**place, "streams": skipped.streams, "passed": skipped.passed})
        return
    for name in skipped.streams:
        show(name)
    if skipped.passed:
        say(f"not skipped in {', '.join(skipped.passed)}, which have passed the record already")
    say(f"the mill of {topic}[{partition}] is asked to skip offset {offset}: it starts again within seconds to do so")


@command("ignore", "tokenmill ignore tokens.raw-text.train 0 1234")
def ignore_command(
    settings: Settings,
    topic: Annotated[str, argument("The token topic.", "TOKEN_TOPIC")],
    partition: Annotated[int, argument("The message's partition.")],
    offset: Annotated[int, argument("The message's offset.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Let all readers of a token topic pass over a message that none of them accepts, because no mill wrote it.

    Mills and stores that halted there go on within seconds; `tokenmill inspect stream` shows the ignore list. A message
    that continues its chain is refused, and is never left out, whatever the list says.
    """
    stream, reason = asyncio.run(ignore(settings, topic, partition, offset))
    if as_json:
        show_json({"topic": topic, "partition": partition, "offset": offset, "stream": stream, "reason": reason})
        return
    show(stream)
    say(f"readers of {topic}[{partition}] pass over offset {offset} from now on: {reason}")


async def _read(settings: Settings, stream: str) -> list[Era]:
    of_bucket = (settings.store / stream / SOURCE_FILE).exists()
    if of_bucket or StoredPack.find(settings.store, stream) is not None:
        reader = open_eras(settings.store, stream)
        return [reader.era(number) for number in range(reader.eras)]
    settled = await settled_stream(settings, stream)
    follower = EraFollower(stream, settled.genesis.recipe.fingerprint)
    async with consumer(settings) as client:
        return [era async for part in read_eras(client, settled.stream.control_topic, follower) for era, _ in part]


async def _eras_and_blocks_left(settings: Settings, stream: str) -> tuple[list[Era], int]:
    """Return the eras, and how many blocks of the token topic are in none."""
    settled = await settled_stream(settings, stream)
    eras = await _read(settings, stream)
    extents = Extents(settled.stream.tokens_topic, settled.genesis.recipe, settled.control.ignored)
    log = EraLog(settled.genesis.recipe.fingerprint, eras[-1] if eras else None)
    async with consumer(settings) as client:
        await extents.look(client, log)
    return eras, sum(max(0, extent.blocks - log.end(number)[0]) for number, extent in extents.found.items())


async def _close(settings: Settings, stream: str) -> list[Era]:
    settled = await settled_stream(settings, stream)

    async def write(topic: str, key: bytes, value: bytes) -> None:
        await write_control(settings, topic, [(key, value)])

    closer = EraCloser(settled, write, era_blocks=1, era_seconds=0.0)
    async with consumer(settings) as client:
        await closer.close(client)
    return await _read(settings, stream)


def eras_table(eras: list[Era]) -> ShownTable:
    """Return a row for each era."""
    rows = []
    for era in eras:
        ranges = ", ".join(
            f"{n}: {part.first:,} to {part.stop - 1:,}" for n, part in enumerate(era.ranges) if part.blocks
        )
        closed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(era.closed / 1000))
        rows.append((era.number, closed, era.blocks, ranges or "the end"))
    return ShownTable(("era", "closed", "blocks", "partition: blocks"), rows, words=True)
