"""The chain of eras: what counts among the records of writers that do not know of each other."""

from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import FINGERPRINT, chains, extents, log_of, next_era
from tokenmill.eras import Era, EraLog, close_era


@given(chains(), st.data())
def test_records_that_continue_nothing_change_nothing(eras: list[Era], data: st.DataObject) -> None:
    """Junk, repeated eras, and eras of writers that stopped long ago, anywhere between."""
    stale = [next_era(log_of(eras[:n]), [50 + n], branch=b"z").pack() for n in range(len(eras)) if not eras[n].end]
    log = EraLog(FINGERPRINT)
    for number, era in enumerate(eras):
        assert log.add(era.pack()) == era
        for _ in range(data.draw(st.integers(0, 3))):
            past = [found.pack() for found in eras[: number + 1]] + stale[: number + 1]
            assert log.add(data.draw(st.binary() | st.sampled_from(past) | st.none())) is None
    assert list(log) == eras
    assert len(log) == len(eras)


@given(chains(), chains(), st.data())
def test_all_readers_agree_on_the_first_of_two_writers(one: list[Era], other: list[Era], data: st.DataObject) -> None:
    """Whatever the interleaving: what counts is one chain, decided by the log alone."""
    values = data.draw(st.permutations([era.pack() for era in [*one, *other]]))
    log = EraLog(FINGERPRINT)
    taken = [era for value in values if (era := log.add(value))]
    assert taken == list(log)
    assert list(log) == list(log_of(taken))
    # whoever starts in the middle of nothing, or hears everything twice, has the same
    again = EraLog(FINGERPRINT)
    for value in [*values, *values]:
        again.add(value)
    assert list(again)[: len(taken)] == taken


def test_ranges_continue_each_partition_where_it_was_left() -> None:
    """Block and chain hash; a partition that was not met before begins at block 0."""
    first = next_era(log_of([]), [2, 5])
    log = log_of([first])
    second = next_era(log, [4, 5, 7])
    assert [part[:3] for part in second.ranges] == [(0, 2, 4), (2, 0, 7)]
    gap = Era(1, first.hash, (second.ranges[0]._replace(first=3),), 0)
    other_text = Era(1, first.hash, (second.ranges[0]._replace(before=b"x" * 16),), 0)
    late_start = Era(1, first.hash, (second.ranges[1]._replace(first=1),), 0)
    for wrong in (gap, other_text, late_start):
        assert Era.unpack(wrong.pack()) == wrong
        assert log.add(wrong.pack()) is None
    assert log.add(second.pack()) == second
    assert {partition: end.block for partition, end in log.ends.items()} == {0: 4, 1: 5, 2: 7}


def test_nothing_follows_the_end() -> None:
    """It is final, also for writers that have not seen it."""
    first = next_era(log_of([]), [1])
    end = next_era(log_of([first]), [1], end=True)
    assert end.end
    log = log_of([first, end])
    assert log.ended
    late = next_era(log_of([first]), [9])
    assert log.add(late.pack()) is None
    assert log.add(Era(2, end.hash, late.ranges, 0).pack()) is None
    assert close_era(log, extents([9]), now=0, era_blocks=1, overdue=True) is None


def test_era_of_another_stream_is_ignored() -> None:
    """Its chain begins elsewhere."""
    assert EraLog(b"g" * 32).add(next_era(log_of([]), [1]).pack()) is None
