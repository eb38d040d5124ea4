"""The chain of eras: what counts among the records of writers that do not know of each other."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import FINGERPRINT, chains, extents, log_of, next_era
from tokenmill.eras import Era, EraLog, close_era


@given(chains(), st.data())
def test_records_that_continue_nothing_change_nothing(eras: list[Era], data: st.DataObject) -> None:
    stale = [next_era(eras[:n], [50 + n] * 3, branch=b"z").pack() for n in range(len(eras)) if not eras[n].end]
    log = EraLog(FINGERPRINT)
    for number, era in enumerate(eras):
        assert log.next_number == number
        assert log.add(era.pack()) == era
        for _ in range(data.draw(st.integers(0, 3))):
            past = [found.pack() for found in eras[: number + 1]] + stale[: number + 1]
            assert log.add(data.draw(st.binary() | st.sampled_from(past) | st.none())) is None
    assert log.last == (eras[-1] if eras else None)


@given(chains(), chains(), st.data())
def test_all_readers_agree_on_the_first_of_two_writers(one: list[Era], other: list[Era], data: st.DataObject) -> None:
    values = data.draw(st.permutations([era.pack() for era in [*one, *other]]))
    log, another = EraLog(FINGERPRINT), EraLog(FINGERPRINT)
    taken = [era for era in map(log.add, values) if era]
    assert all(two.before == one.hash for one, two in pairwise(taken))
    assert [era for era in map(another.add, values) if era] == taken
    assert not any(era in taken for era in map(log.add, values) if era)


def test_ranges_continue_each_partition_where_it_was_left() -> None:
    first = next_era([], [2, 5])
    log = log_of([first])
    second = next_era([first], [4, 5, 7])
    assert [part[:2] for part in second.ranges] == [(2, 4), (5, 5), (0, 7)]
    one, two, three = second.ranges
    gap = (one._replace(first=3), two, three)
    other_text = (one._replace(before=b"x" * 16), two, three)
    late_start = (one, two, three._replace(first=1))
    forgotten = (one,)
    for wrong in (Era(1, first.hash, ranges, 0) for ranges in (gap, other_text, late_start, forgotten)):
        assert Era.unpack(wrong.pack()) == wrong
        assert log.add(wrong.pack()) is None
    assert log.add(second.pack()) == second
    assert [log.end(partition)[0] for partition in range(4)] == [4, 5, 7, 0]


def test_nothing_follows_the_end() -> None:
    first = next_era([], [1])
    end = next_era([first], [1], end=True)
    assert end.end
    log = log_of([first, end])
    assert log.ended
    late = next_era([first], [9])
    assert log.add(late.pack()) is None
    assert log.add(Era(2, end.hash, late.ranges, 0).pack()) is None
    assert close_era(log, extents([9]), now=0, era_blocks=1, overdue=True) is None


def test_era_of_another_stream_is_ignored() -> None:
    assert EraLog(b"g" * 32).add(next_era([], [1]).pack()) is None
