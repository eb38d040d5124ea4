"""Eras for the tests: chains of them over made-up blocks, and what a log may hold beside them."""

from collections.abc import Sequence
from itertools import zip_longest

from hypothesis import strategies as st

from tokenmill.eras import ERA_KEY, Era, EraFollower, EraLog, LogRecord, close_era
from tokenmill.reading import Extent
from tokenmill.wire.chain import genesis_hash

FINGERPRINT = b"f" * 32


def chain_hash(partition: int, blocks: int, branch: bytes = b"") -> bytes:
    """Return a made-up chain hash after so many blocks; two branches differ in every hash but the one at block 0."""
    start = genesis_hash(FINGERPRINT, partition)
    return start if blocks == 0 else start[:8] + blocks.to_bytes(4, "big") + branch.ljust(4, b"\0")


def extents(blocks: Sequence[int], branch: bytes = b"") -> dict[int, Extent]:
    return {partition: Extent(n, chain_hash(partition, n, branch)) for partition, n in enumerate(blocks)}


def next_era(
    before: Sequence[Era], blocks: Sequence[int], *, branch: bytes = b"", closed: int = 0, end: bool = False
) -> Era:
    """Return the era that a writer which knows these eras would write when the partitions have so many blocks."""
    log = log_of(before)
    era = close_era(log, extents(blocks, branch), now=closed, era_blocks=1, overdue=True, end=end)
    assert era is not None
    return era


def log_of(eras: Sequence[Era]) -> EraLog:
    log = EraLog(FINGERPRINT)
    for era in eras:
        assert log.add(era.pack()) == era
    return log


def records(values: Sequence[bytes], start: int = 0) -> list[LogRecord]:
    return [LogRecord(offset, ERA_KEY, value) for offset, value in enumerate(values, start)]


def look(follower: EraFollower, log: Sequence[LogRecord]) -> list[Era]:
    """Look at a log as the protocol says; return the new eras."""
    position = follower.position
    rest = [record for record in log if position is None or record.offset >= position]
    if position is not None and not follower.holds(rest.pop(0) if rest else None):
        follower.restart()
        rest = [*log]
    found = [era for record in rest if (era := follower.add(record)) is not None]
    follower.finish()
    return found


def chains(longest: int = 6) -> st.SearchStrategy[list[Era]]:
    """Return chains of eras: each takes some new blocks of some partitions, and now and then an end comes."""

    def chain(steps: list[list[int]], end: bool) -> list[Era]:  # noqa: FBT001 - called by Hypothesis
        eras: list[Era] = []
        reached: list[int] = []
        for step in filter(any, steps):
            reached = [before + more for before, more in zip_longest(reached, step, fillvalue=0)]
            eras.append(next_era(eras, reached))
        return [*eras, next_era(eras, reached, end=True)] if end else eras

    steps = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=longest)
    return st.builds(chain, steps, st.booleans())
