"""When an era is closed, and with what."""

from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import chain_hash, chains, extents, log_of, next_era
from tokenmill.eras import Era, close_era


def test_era_is_closed_when_it_is_full_or_overdue() -> None:
    log = log_of([next_era([], [1, 1])])
    for blocks, era_blocks, overdue, closed in [
        ([1, 1], 1, True, False),
        ([2, 2], 3, False, False),
        ([2, 3], 3, False, True),
        ([2, 1], 3, True, True),
    ]:
        era = close_era(log, extents(blocks), now=7, era_blocks=era_blocks, overdue=overdue)
        assert (era is not None) == closed
        if era:
            assert era.closed == 7
            assert [part[:2] for part in era.ranges] == [(1, stop) for stop in blocks]


@given(chains().filter(lambda eras: not eras or not eras[-1].end), st.lists(st.integers(0, 30), max_size=3))
def test_what_is_closed_continues_the_log(eras: list[Era], blocks: list[int]) -> None:
    """Partitions that reach less far than the eras, as after a lost tail, have an empty range."""
    log = log_of(eras)
    era = close_era(log, extents(blocks), now=0, era_blocks=1, overdue=False)
    behind = all(n <= log.end(partition)[0] for partition, n in enumerate(blocks))
    assert (era is None) == behind
    if era:
        assert log.continues(era)
        reached = [*blocks, *([0] * (len(era.ranges) - len(blocks)))]
        assert [part.stop for part in era.ranges] == [max(n, log.end(p)[0]) for p, n in enumerate(reached)]
        assert all(part.after == chain_hash(p, part.stop) for p, part in enumerate(era.ranges))


def test_end_comes_after_the_last_blocks() -> None:
    log = log_of([])
    last = close_era(log, extents([3]), now=0, era_blocks=100, overdue=False, end=True)
    assert last is not None
    assert (last.blocks, last.end) == (3, False)
    log.add(last.pack())
    marker = close_era(log, extents([3]), now=0, era_blocks=100, overdue=False, end=True)
    assert marker is not None
    assert (marker.blocks, marker.end) == (0, True)
    log.add(marker.pack())
    assert log.ended
    assert close_era(log, extents([3]), now=0, era_blocks=100, overdue=False, end=True) is None
