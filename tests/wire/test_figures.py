"""Figures: their bytes and their sums. That chains count rightly is shown in tests/app/milling/test_columns.py."""

import pytest
from hypothesis import given

from tests.strategies import figures
from tokenmill.recipe import canonical_json
from tokenmill.wire.totals import Amount, Figures, StepFigures


@given(figures, figures)
def test_sums_forget_nothing_and_change_no_summand(one: Figures, other: Figures) -> None:
    before = canonical_json(one.to_dict()), canonical_json(other.to_dict())
    total, swapped = one + other, other + one
    for name in {step.step for step in [*one.steps, *other.steps]}:
        found = [f.step(name) for f in (Figures.from_dict(one.to_dict()), Figures.from_dict(other.to_dict()), total)]
        mine, theirs, both = found
        assert both.taken == mine.taken.plus(theirs.taken)
        assert both.passed == mine.passed.plus(theirs.passed)
        assert both.refused == mine.refused.plus(theirs.refused)
        assert both.dropped == mine.dropped.plus(theirs.dropped)
        assert both.to_dict() == swapped.step(name).to_dict()
    for lengths in ("token_lengths", "text_lengths"):
        assert getattr(total, lengths).total() == getattr(one, lengths).total() + getattr(other, lengths).total()
    assert total.languages.keys() == {*one.languages, *other.languages}
    assert [step.step for step in total.steps][: len(one.steps)] == [step.step for step in one.steps]
    assert (canonical_json(one.to_dict()), canonical_json(other.to_dict())) == before


@given(figures)
def test_figures_survive_their_bytes(found: Figures) -> None:
    again = Figures.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert bool(again) == bool(found)


def test_bytes_of_figures_are_canonical_json() -> None:
    """Lengths are lists that begin at one token and end with the longest; amounts are documents and size."""
    step = StepFigures("regex", Amount(3, 30), Amount(2, 25), {"regex.matched": Amount(1, 5), "never": Amount()})
    found = Figures([step], languages={"de": Amount(2, 11)})
    found.token_lengths[2] += 2
    found.text_lengths[0] += 1
    found.text_lengths[3] += 1
    assert canonical_json(found.to_dict()) == (
        b'{"bytes":[1,0,0,1],"languages":{"de":[2,11]},"steps":[{"dead_lettered":[0,0],'
        b'"filtered":{"regex.matched":[1,5]},"in":[3,30],"out":[2,25],"step":"regex"}],"tokens":[0,0,2]}'
    )


def test_lengths_beyond_any_integer_are_refused() -> None:
    values = {"steps": [], "tokens": [0] * 65, "bytes": [], "languages": {}}
    with pytest.raises(ValueError, match="64 powers of two, not of 65"):
        Figures.from_dict(values)
