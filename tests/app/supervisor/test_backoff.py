"""Pauses before a worker is started again."""

from tokenmill.app.supervisor.backoff import Backoff
from tokenmill.app.supervisor.limits import Limits


def test_pauses_double_up_to_the_longest() -> None:
    """A worker that ends at once again and again is started ever more rarely, but for ever."""
    backoff = Backoff(Limits())

    assert [backoff.after(0.5) for _ in range(7)] == [1, 2, 4, 8, 10, 10, 10]


def test_a_healthy_life_makes_the_next_pause_short() -> None:
    """After a minute without trouble, the next end has nothing to do with the last one."""
    backoff = Backoff(Limits())
    for _ in range(5):
        backoff.after(0.5)

    assert backoff.after(60.0) == 1
    assert backoff.after(0.5) == 2
