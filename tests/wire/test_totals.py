"""Totals and figures: bytes, sums, and what is none."""

from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import figures, totals
from tokenmill.recipe import canonical_json
from tokenmill.wire.totals import Amount, Figures, StepFigures, Totals


@given(totals)
def test_totals_survive_their_bytes(total: Totals) -> None:
    again = Totals.unpack(total.pack())
    assert again == Totals.unpack(memoryview(total.pack()))
    assert again.to_dict() == total.to_dict()
    spelled = replace(total, filtered=Counter({**total.filtered, "other": 0}))
    assert again.pack() == spelled.pack() == total.pack()


@given(totals, totals)
def test_sums_are_over_every_count(one: Totals, other: Totals) -> None:
    before = one.copy(), other.copy()
    total = one + other
    for name in (field.name for field in fields(Totals)):
        mine, theirs, both = (getattr(t, name) for t in (one, other, total))
        if isinstance(both, Figures):
            assert both == mine + theirs
        elif isinstance(both, Counter):
            assert +both == Counter({reason: mine[reason] + theirs[reason] for reason in mine | theirs if both[reason]})
        else:
            assert both == mine + theirs
    assert (one, other) == before


@given(totals)
def test_a_copy_lives_on_its_own(total: Totals) -> None:
    copy = total.copy()
    assert copy.to_dict() == total.to_dict()
    total.figures.step("new").filtered["new"] = Amount(1, 1)
    assert all(step.step != "new" for step in copy.figures.steps)
    total.filtered["new"] += 1
    total.dead_lettered["new"] += 1
    total.records += 1
    assert copy.filtered["new"] == copy.dead_lettered["new"] == 0
    assert copy.records == total.records - 1


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), totals)
def test_totals_balance_when_every_record_has_one_outcome(
    kept: int, tombstones: int, flushes: int, other: int, reasons: Totals
) -> None:
    reasons.figures = Figures()
    filtered, dead = reasons.filtered, reasons.dead_lettered
    records = kept + tombstones + flushes + other + filtered.total() + dead.total()
    total = Totals(records, kept, tombstones, flushes, other, filtered, dead)
    assert total.balanced
    for name in ("kept", "tombstones", "flushes", "other_split", "records"):
        assert not replace(total, **{name: getattr(total, name) + 1}).balanced
    total.dead_lettered["x"] += 1
    assert not total.balanced


def test_bytes_of_totals_are_canonical_json() -> None:
    total = Totals(3, 1, 0, 0, 0, Counter(empty=1), Counter(too_large=1, skipped=0), 5, 4)
    assert total.pack() == (
        b'{"dead_lettered":{"too_large":1},"filtered":{"empty":1},"flushes":0,"kept":1,"other_split":0,"records":3,'
        b'"tokens":5,"tombstones":0,"value_bytes":4}'
    )


@pytest.mark.parametrize(
    "data",
    [
        *(b'{"surprise":1}', b"[]", b"1", b"null", b'{"filtered":7}', b'{"figures":{}}', b'{"figures":[]}'),
        b'{"figures":{"bytes":[],"languages":{},"steps":[{"step":"x"}],"tokens":[]}}',
        b'{"figures":{"bytes":[],"languages":{"en":[1,2,3]},"steps":[],"tokens":[]}}',
    ],
)
def test_what_is_no_totals_is_refused(data: bytes) -> None:
    with pytest.raises(TypeError):
        Totals.unpack(data)


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
