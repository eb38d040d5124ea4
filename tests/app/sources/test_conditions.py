"""`--where`: what a condition is, and what meets it."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import reading_of
from tokenmill.app.sources.conditions import Condition
from tokenmill.app.sources.items import Unmet
from tokenmill.errors import InputError

ROW = {
    "uid": 7,
    "score": 0.5,
    "price": Decimal("1.50"),
    "meta": {"lang": "de", "tags": ["a", "b"], "votes": [1, 5]},
    "day": "2026-03-01",
    "cell": "0.73",
    "code": "007",
    "said": 'he, "x"',
    "ok": True,
    "gone": None,
    "a < b": "odd",
}
MEETS = [
    "uid=7", "uid = 7", "uid==7.0", "uid >= 7", "uid<8", "uid in 3,7", "uid not in (3, 8)", "uid!=8",
    "score>=0.5", "score = 0.50", "score <= 5e-1 \t", "price = 1.5", "price > 1.49",
    "meta.lang=de", "meta.lang == de", "meta.lang != en", "meta.lang in en,de", 'meta.lang in ["en", "de"]',
    "meta.tags=b", "meta.tags != c", "meta.tags not in c,d", "meta.votes > 4",
    "day >= 2026-02-28", "day < 2026-03-02", "cell > 0.7", "cell <= 1", "code=007", "code < 8", 'code < "1"',
    'said = "he, \\"x\\""', 'said in "he, \\"x\\"",b', "ok=true", "ok in true,false",
    "none=null", "gone=null", "uid != null", '"a < b" = odd',
]  # fmt: skip
FAILS = [
    "uid=8", "uid != 7", "uid>7", 'uid="7"', "uid in 3,8", "uid not in 7,8", "uid < de", "meta.lang=en",
    "meta.lang.x=1", "meta.tags=c", "meta.tags != b", "meta.votes > 5", "meta.lang > 5", "day > 2026-03-01",
    "code=7", "cell > 0.74", "ok > 0", "ok=1", "ok != true", "none=x", "none != x", "none not in x,y", "none < 1",
    "gone != x", "meta < 1", "meta < z",
    "gone != null", "code < 7", 'code < "0"',
]  # fmt: skip


@pytest.mark.parametrize("text", MEETS)
def test_an_object_meets(text: str) -> None:
    assert Condition.parse(text).holds(ROW)


@pytest.mark.parametrize("text", FAILS)
def test_an_object_does_not_meet(text: str) -> None:
    """A field that is not there meets nothing, not even an inequality; nor does a number compare with a text."""
    assert not Condition.parse(text).holds(ROW)


@pytest.mark.parametrize(
    "text",
    ["lang", "", "=x", " =x", "in a,b", "lang in", "lang in ", "lang in a,,b", "lang in (a,b", "lang !x", "score >",
     "score >>1", "score => 5", "score =< 0.5", "score <> 5", "lang === en", "lang != = x", 'lang = "en', 'lang = "e"n',
     'x in "a"b', "a < ="],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match=r"is no condition \(.*field=value.*score>=0\.5.*lang in en,de"):
        Condition.parse(text)


fields = st.text("abc._ ", min_size=1).map(str.strip).filter(bool) | st.text(min_size=1)
values = st.text(st.characters(exclude_categories=["Cs"]))


@given(field=fields, operator=st.sampled_from(["=", "==", "!=", "<", "<=", ">", ">=", "in", "not in"]), value=values)
def test_anything_can_be_written_in_quotes(field: str, operator: str, value: str) -> None:
    found = Condition.parse(f"{json.dumps(field)} {operator} {json.dumps(value)}")
    assert (found.field, found.operator) == (field, "=" if operator == "==" else operator)
    assert found.holds({field: value}) == (operator in ("=", "==", "<=", ">=", "in"))
    assert found == Condition.parse(
        f" {json.dumps(field)}{operator.replace('==', '=').join('  ')}{json.dumps(value)}  "
    )


@given(
    left=st.integers() | st.floats(allow_nan=False, allow_infinity=False), right=st.integers(-9, 9) | st.floats(-9, 9)
)
def test_numbers_compare_by_value(left: float, right: float) -> None:
    for operator, expected in (("<", left < right), ("<=", left <= right), (">", left > right), (">=", left >= right)):
        condition = Condition.parse(f"n{operator}{right!r}")
        assert condition.holds({"n": left}) == expected
        assert condition.holds({"n": repr(left)}) == expected
    assert Condition.parse(f"n={right!r}").holds({"n": left}) == (left == right)
    assert Condition.parse(f"n!={right!r}").holds({"n": left}) == (left != right)


@given(text=st.text())
def test_any_text_is_a_condition_or_an_error_of_ours(text: str) -> None:
    try:
        condition = Condition.parse(text)
    except InputError:
        return
    others: list[Any] = [None, 1, "x", [], {}, Decimal("nan"), True, [None, "x"]]
    for value in others:
        condition.holds({condition.field: value})


def test_equality_is_known_again_by_later_versions() -> None:
    """What identifies a run must stay as it was: field and value."""
    assert Condition.parse("language=Python").deciding() == ["language", "Python"]
    assert Condition.parse("score >= 0.5").deciding() == ["score", ">=", "0.5"]


def test_what_is_unmet_is_counted() -> None:
    """And whether for want of the field, which a misspelt name shows by."""
    shape = reading_of(where=[Condition.parse("score >= 0.5")]).shape
    rows: list[dict[str, Any]] = [{"score": 0.4}, {"scores": 1}, {"score": None}]
    found = [shape.of_json("a:1", json.dumps({"text": "x", **row}).encode()) for row in rows]
    assert found == [Unmet(1, 0), Unmet(1, 1), Unmet(1, 1)]
