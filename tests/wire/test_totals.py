"""Totals: their arithmetic and their bytes. That chains count rightly is shown where they are milled."""

from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import totals
from tokenmill.wire.totals import Amount, Figures, Totals

COUNTS = ("kept", "tombstones", "flushes", "other_split")


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
    for name in (*COUNTS, "records"):
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
