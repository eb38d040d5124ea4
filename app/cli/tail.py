"""``tokenmill tail``: documents as they pass, with what becomes of each."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

from ..funnel.tried_documents import beginning_of
from ..settings import Settings
from ..tools.inspect.tracing import PassingRecord, passing_records
from .options import RawTopic, command, option
from .output import LINE_CHARACTERS, AsJson, count, moment_of, show, show_json, size

SHOWN_TOKENS = 12  # ids of a document, in its line; --json has all
WORDS = {"kept": "kept", "filtered": "filtered out", "dead_lettered": "dead letter", "other_split": "of no split"}


@command(
    "tail",
    "tokenmill tail raw-text",
    "tokenmill tail raw-text --follow",
    "tokenmill tail raw-text --json --last 100",
)
def tail_command(
    settings: Settings,
    topic: RawTopic,
    *,
    last: Annotated[int, option("How many of each partition to begin with.", "N", min=0)] = 5,
    follow: Annotated[bool, option("Go on with what comes, until Ctrl-C or --limit.", None, "--follow", "-f")] = False,
    limit: Annotated[int | None, option("Stop after this many.", "N", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest documents of a raw topic, and what becomes of each: kept, filtered out, or a dead letter.

    With the reason, or the token ids of a kept document. Nothing is written. Outcomes follow the recipe of the topic's
    streams, also for records that no mill has read yet.
    """
    asyncio.run(_tail(settings, topic, last, follow=follow, limit=limit, as_json=as_json))


async def _tail(settings: Settings, topic: str, last: int, *, follow: bool, limit: int | None, as_json: bool) -> None:
    shown = 0
    async with aclosing(passing_records(settings, topic, last, follow=follow)) as passing:
        async for found in passing:
            if as_json:
                show_json(asdict(found) | {"place": found.place._asdict()})
            for line in lines_of(found) if not as_json else ():
                show(line)
            shown += 1
            if shown == limit:
                return


def lines_of(found: PassingRecord) -> Iterator[str]:
    """Yield the place of a record and what becomes of it; below, the beginning of its text, and of its ids."""
    outcome, record = found.outcome, found.record
    what = WORDS.get(outcome.kind, outcome.kind)
    split = f" ({outcome.split})" if outcome.split else ""
    told = f": {outcome.reason}" if outcome.reason and outcome.kind != "other_split" else ""
    tokens = f", {count(len(outcome.tokens), 'token')}" if outcome.tokens else ""
    moment = moment_of(record.timestamp)
    time = f"{moment}  " if moment else ""
    yield f"{time}{found.place}  {what}{split}{told}{tokens}, {size(record.value_bytes)}"
    if record.text:
        yield f"  {beginning_of(record.text, LINE_CHARACTERS)!r}"
    if outcome.tokens:
        more = " …" if len(outcome.tokens) > SHOWN_TOKENS else ""
        yield f"  {' '.join(map(str, outcome.tokens[:SHOWN_TOKENS]))}{more}"
