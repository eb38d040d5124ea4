"""Whether a run is new, and where it goes on if it is not."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tokenmill.errors import InputError, SourceError

from ..settings import Settings
from .begun import Begun, group_name, keep_begun, read_begun, renew_begun, write_begun
from .identity import Identity
from .tails import Standing, has_marks, partition_ends, read_standing

ADVICE = "--restart sends all documents again; to send only what is new, name those files"


class Taken(NamedTuple):
    """A run that is to go on, or to begin."""

    begun: Begun
    standing: Standing


@asynccontextmanager
async def taken_up(
    settings: Settings, topic: str, partitions: int, identity: Identity, *, restart: bool
) -> AsyncIterator[Taken]:
    """Yield where the run goes on; one that is new, or started again on purpose, begins now.

    Nobody else writes for the run meanwhile (`tokenmill.app.produce.fence`). While the block lasts, Kafka does not
    forget when it began.

    Raises:
        InputError: a source is not what it was when the run began.
        SourceError: the topic no longer tells where the run stands.

    """
    group = group_name(settings, identity)
    taken = await _take_up(settings, group, topic, partitions, identity, restart=restart)
    keeping = asyncio.create_task(keep_begun(settings, group, topic, taken.begun))
    try:
        yield taken
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def _take_up(
    settings: Settings, group: str, topic: str, partitions: int, identity: Identity, *, restart: bool
) -> Taken:
    begun = None if restart else await read_begun(settings, group, topic)
    if begun is None:
        ends = await partition_ends(settings, topic, partitions)
        if not restart and await has_marks(settings, topic, ends, identity.run):
            raise SourceError(
                f"Kafka no longer knows when this run began (offsets.retention.minutes has passed), and {topic} holds "
                f"documents of it: {ADVICE}"
            )
        begun = Begun(time.time_ns() // 1_000_000, identity.sources, identity.count, ends)
        await write_begun(settings, group, topic, begun)
        return Taken(begun, Standing.nothing(identity.count, partitions))
    if len(begun.offsets) > partitions:
        raise SourceError(f"{topic} was made anew, with fewer partitions, since this run began: {ADVICE}")
    if begun.sources != identity.sources:
        raise InputError(
            "the sources, the way their paths are written, or this program have changed since this run began "
            f"({begun.source_count:,} sources then, {identity.count:,} now), so nobody can tell which documents are in "
            f"{topic} already. {ADVICE}"
        )
    standing = await read_standing(settings, topic, identity.run, begun, identity.count)
    # Where another call has begun it anew since, the answer is no, and the brokers refuse whatever this one sends.
    await renew_begun(settings, group, topic, begun)
    return Taken(begun, standing)
