"""Whether a run is new, and where it goes on if it is not."""

from typing import NamedTuple

from tokenmill.errors import InputError, SourceError

from ..settings import Settings
from .begun import Begun, group_name, read_begun, write_begun
from .identity import Identity
from .tails import Standing, has_marks, partition_ends, read_standing

ADVICE = "--restart sends all documents again; to send only what is new, name those files"


class Taken(NamedTuple):
    """A run that is to go on, or to begin."""

    begun: Begun
    standing: Standing


async def take_up(settings: Settings, topic: str, partitions: int, identity: Identity, *, restart: bool) -> Taken:
    """Return where the run goes on; one that is new, or started again on purpose, begins now.

    Nobody else writes for the run meanwhile (`tokenmill.app.produce.fence`).

    Raises:
        InputError: a source is not what it was when the run began.
        SourceError: the topic no longer tells where the run stands.

    """
    group = group_name(settings, identity)
    begun = None if restart else await read_begun(settings, group, topic)
    if begun is None:
        ends = await partition_ends(settings, topic, partitions)
        if not restart and await has_marks(settings, topic, ends, identity.run):
            raise SourceError(
                f"Kafka no longer knows when this run began (offsets.retention.minutes has passed), and {topic} holds "
                f"documents of it: {ADVICE}"
            )
        begun = await write_begun(settings, group, topic, identity, ends)
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
    return Taken(begun, standing)
