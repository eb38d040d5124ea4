"""Pauses that double."""

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.tasks import Backoff

FIRST, LONGEST, HEALTHY = 1.0, 10.0, 60.0


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(FIRST, LONGEST, HEALTHY)
    assert [backoff.next(0.5) for _ in range(7)] == [1, 2, 4, 8, 10, 10, 10]


def test_a_healthy_life_makes_the_next_pause_short() -> None:
    backoff = Backoff(FIRST, LONGEST, HEALTHY)
    for _ in range(5):
        backoff.next(0.5)
    assert backoff.next(60.0) == 1
    assert backoff.next(0.5) == 2


@given(st.integers(0, 2000), st.integers(0, 20))
def test_a_reset_makes_the_next_pause_the_first(before: int, after: int) -> None:
    """However often it failed before, also after more failures than a float can count in powers of two."""
    backoff = Backoff(FIRST, LONGEST)
    for _ in range(before):
        backoff.next(1e9)
    backoff.reset()
    assert [backoff.next() for _ in range(after)] == [min(FIRST * 2**number, LONGEST) for number in range(after)]
