"""Eras over the chains of a test's store, and stores that have them."""

from collections.abc import Mapping, Sequence

from tests.store.chains import STREAM
from tokenmill.eras import Era, EraLog, close_era
from tokenmill.reading import Blocks, Extent
from tokenmill.store import EraWriter, Store, StreamInfo
from tokenmill.wire.chain import genesis_hash

OFFSET = 1000
"""Of era 0's record on a control topic that nobody has; the others follow at every third offset."""


def make_eras(
    info: StreamInfo, chains: Mapping[int, Blocks], stops: Sequence[Mapping[int, int]], *, end: bool = False
) -> list[Era]:
    """Make the eras after each of which the partitions reach these blocks, and with ``end`` the end marker."""
    log = EraLog(info.fingerprint)
    reached: dict[int, int] = {}
    eras = []
    for closed, step in enumerate([*stops, {}] if end else stops):
        reached |= step
        extents = {
            number: Extent(stop, chains[number].chains[stop - 1] if stop else genesis_hash(info.fingerprint, number))
            for number, stop in reached.items()
        }
        is_marker = end and closed == len(stops)
        era = close_era(log, extents, now=closed, era_blocks=1, overdue=True, end=is_marker)
        assert era is not None
        assert log.add(era.pack()) == era
        eras.append(era)
    return eras


def with_offsets(eras: Sequence[Era]) -> list[tuple[Era, int]]:
    return [(era, OFFSET + 3 * era.number) for era in eras]


def write_eras(store: Store, eras: Sequence[Era], *, commit: int = 3, stream: str = STREAM) -> None:
    """Bring eras into a store, so many with each commit; those that it has already are left out."""
    with EraWriter.open(store, stream) as writer:
        rest = with_offsets(eras)[writer.next_number :]
        for first in range(0, len(rest), commit):
            writer.append(rest[first : first + commit])
