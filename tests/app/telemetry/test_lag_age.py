"""How old the records are that wait."""

from typing import NamedTuple

from tokenmill.app.telemetry.lag_age import Trail


class Record(NamedTuple):
    """A record's place and time."""

    offset: int
    timestamp: int


def fetch(first: int, last: int, timestamp: int, step: int) -> list[Record]:
    """Return records whose timestamps rise by ``step`` milliseconds each."""
    return [Record(offset, timestamp + step * (offset - first)) for offset in range(first, last + 1)]


def test_age_is_that_of_the_record_at_the_offset() -> None:
    """Inside a fetch, between two, and before the first that is remembered."""
    trail = Trail()
    trail.passed(fetch(10, 19, 1_000_000, 1000))
    trail.passed(fetch(30, 39, 2_000_000, 1000))
    now = 2_010_000
    assert [trail.age(offset, now) for offset in (10, 15, 19, 20, 30, 34)] == [1010, 1005, 1001, 10, 10, 6]
    trail.forget(31)
    assert [trail.age(offset, now) for offset in (5, 31)] == [10, 9]


def test_a_record_that_nobody_saw_is_as_old_as_the_last_one_or_as_the_end_that_was_reached() -> None:
    """A backlog is old; what comes after a quiet night is not."""
    trail = Trail()
    assert trail.age(0, 5_000_000) is None
    trail.begin(1_000_000)
    assert trail.age(7, 5_000_000) == 4000
    trail.passed(fetch(7, 9, 3_000_000, 0))
    assert trail.age(10, 5_000_000) == 2000
    trail.level(4_999_000)
    assert trail.age(10, 5_000_000) == 1


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    """Producers' clocks are not ours."""
    trail = Trail()
    trail.passed([Record(0, 9_000_000)])
    assert trail.age(0, 5_000_000) == 0
