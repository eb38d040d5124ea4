"""Rates of what workers count."""

from collections.abc import Mapping

from tokenmill.app.local.live.rates import WINDOW_SECONDS, Rates


def counted(**workers: float) -> Mapping[str, Mapping[str, float]]:
    """Return workers that have counted so many documents and tokens."""
    return {name: {"documents": size, "tokens": size} for name, size in workers.items()}


def test_a_rate_is_growth_over_the_last_seconds() -> None:
    """What was long ago does not count."""
    rates = Rates()
    for second in range(20):
        rates.add(float(second), counted(a=1000 if second < 10 else 1000 + 10 * (second - 9)))

    assert rates.per_second("documents") == 10
    for second in range(20, 20 + 2 * int(WINDOW_SECONDS)):
        rates.add(float(second), counted(a=1100))
    assert rates.per_second("documents") == 0


def test_a_run_that_is_over_before_the_second_look_has_a_rate() -> None:
    """A worker counts from 0 on, so what it says first was done since the look before."""
    rates = Rates()
    rates.add(0.0, {})
    rates.add(2.0, counted(a=300))
    assert rates.per_second("documents") == 150
    rates.add(4.0, counted(a=300))
    assert rates.per_second("documents") == 75


def test_each_worker_has_a_rate_and_a_new_process_counts_from_0() -> None:
    """What the process before it counted is no debt of it."""
    rates = Rates()
    rates.add(0.0, counted(a=100, b=5000))
    rates.add(1.0, counted(a=140, b=60))

    assert (rates.per_second("tokens", "a"), rates.per_second("tokens", "b")) == (40, 60)
    assert rates.per_second("tokens") == 100
    assert rates.per_second("tokens", "nobody") == 0


def test_there_is_no_rate_before_two_looks() -> None:
    """One look has no length."""
    rates = Rates()
    assert rates.per_second("tokens") == 0
    rates.add(0.0, counted(a=5))
    assert rates.per_second("tokens") == 0
