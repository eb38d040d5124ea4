"""Documents that are shown: the same ones whatever the order, and the place at which a step changed a text."""

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import texts
from tokenmill.app.funnel import (
    CUT,
    LEAD_CHARACTERS,
    SHOWN_CHARACTERS,
    EvenSample,
    beginning_of,
    where_they_differ,
)

numbers = st.lists(st.integers(0, 2**63), unique=True)


@given(numbers, st.integers(0, 6), st.randoms())
def test_the_order_decides_nothing(found: list[int], size: int, chance: st.DataObject) -> None:
    """A sample of the same numbers is the same sample, in the order of the numbers; none is left out without need."""
    one, other = EvenSample[str](size), EvenSample[str](size)
    for number in found:
        one.add(number, str(number))
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    for number in shuffled:
        if other.wants(number):
            other.add(number, str(number))
    assert one.items() == other.items() == [str(number) for number in sorted(map(int, one.items()))]
    assert len(one.items()) == min(size, len(found))


def test_every_part_of_the_input_has_its_share() -> None:
    """Of a hundred numbers among ten thousand, some are in each tenth."""
    sample = EvenSample[int](100)
    for number in range(10_000):
        sample.add(number, number)
    assert {number // 1000 for number in sample.items()} == set(range(10))


@given(texts)
def test_a_beginning_is_short(text: str) -> None:
    """And says where it is one."""
    found = beginning_of(text * 50)
    assert len(found) <= SHOWN_CHARACTERS + len(CUT)
    assert (text * 50).startswith(found.removesuffix(CUT))


@given(st.text(max_size=200), st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), texts)
def test_the_first_difference_is_shown(same: str, before: str, after: str, rest: str) -> None:
    """With a little in front of it, and nothing of what is long before."""
    one, other = f"{same}{before}{rest}", f"{same}{after}{rest}"
    shown, changed = where_they_differ(one, other)
    assert (shown == changed) == (one == other)
    assert max(len(shown), len(changed)) <= SHOWN_CHARACTERS + 2 * len(CUT)
    if one != other and len(same) > LEAD_CHARACTERS:
        assert shown.startswith(CUT)
        assert one[len(same) - LEAD_CHARACTERS :].find(shown.strip(CUT)[LEAD_CHARACTERS:]) >= 0


def test_a_change_far_inside_is_in_sight() -> None:
    """As an address that was replaced at the end of a page."""
    shown, changed = where_they_differ(f"{'a' * 5000} me@example.com", f"{'a' * 5000} email@example.com")
    assert shown == f"{CUT}{'a' * 59} me@example.com"
    assert changed == f"{CUT}{'a' * 59} email@example.com"
