"""Rates of what chains grow by."""

from tokenmill.app.live.rates import WINDOW_SECONDS, Rates
from tokenmill.app.supervisor import ChainStatus


def chain(size: int) -> ChainStatus:
    """Return a chain with so many documents of a byte and a token each."""
    return ChainStatus("t.train", 0, 0, 0, 0, 0, size, size, size, None)


def test_a_rate_is_growth_over_the_last_seconds() -> None:
    """What was long ago does not count."""
    rates = Rates()
    for second in range(20):
        rates.add(float(second), {"a": chain(1000 if second < 10 else 1000 + 10 * (second - 9))})

    assert rates.per_second("documents") == 10
    for second in range(20, 20 + 2 * int(WINDOW_SECONDS)):
        rates.add(float(second), {"a": chain(1100)})
    assert rates.per_second("documents") == 0


def test_what_a_chain_had_when_it_was_first_heard_of_is_no_growth() -> None:
    """A service that starts on an old state does not mill a terabyte in its first second."""
    rates = Rates()
    rates.add(0.0, {"a": chain(0)})
    rates.add(1.0, {"a": chain(10**12)})

    assert rates.per_second("bytes") == 0


def test_there_is_no_rate_before_two_looks() -> None:
    """One look has no length."""
    rates = Rates()
    assert rates.per_second("tokens") == 0
    rates.add(0.0, {"a": chain(5)})
    assert rates.per_second("tokens") == 0
