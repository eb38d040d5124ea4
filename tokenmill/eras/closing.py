"""When an era is closed, and what goes into it."""

from collections.abc import Mapping

from tokenmill.eras.log import EraLog
from tokenmill.eras.record import Era, EraRange
from tokenmill.reading.continuing import Extent


def close_era(
    log: EraLog,
    extents: Mapping[int, Extent],
    *,
    now: int,
    era_blocks: int,
    overdue: bool,
    end: bool = False,
) -> Era | None:
    """Return the era that should be written now, or None.

    An era is closed at ``era_blocks`` new blocks, all partitions together, or as soon as there is one when it is
    ``overdue``. It takes all new blocks, not the first ``era_blocks``: a token partition's last message says how far it
    reaches, and the hashes between would have to be read from all messages before. With ``end``, the end marker is
    returned once no blocks are left, and before that an era of those that are.

    Args:
        log: the eras so far, as the control topic has them now.
        extents: how far each token partition reaches. One that is missing, or reaches less far than the eras, as after
            a lost tail, is continued another time.
        now: milliseconds since 1970, for the record.
        era_blocks: new blocks that close an era, 1 at least.
        overdue: whether the oldest new block has waited long enough.
        end: whether the stream is to be closed.

    """
    if log.ended:
        return None
    ranges = []
    for partition in range(max([log.partitions, *(number + 1 for number in extents)])):
        first, before = log.end(partition)
        extent = extents.get(partition)
        reached = Extent(first, before) if extent is None or extent.blocks <= first else extent
        ranges.append(EraRange(first, reached.blocks, before, reached.hash))
    new = sum(part.blocks for part in ranges)
    if new and (new >= era_blocks or overdue or end):
        return Era(log.next_number, log.head, tuple(ranges), now)
    return Era(log.next_number, log.head, tuple(ranges), now, end=True) if end and not new else None
