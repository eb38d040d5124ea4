"""Fields by name or dotted path: one rule, for decoders and for `tokenmill produce`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plain_rules import ABSENT, PlainRules
from tokenmill.app.milling.decoding.plain_values import find_field
from tokenmill.app.sources.conditions import finder

KEYS = st.sampled_from(["a", "b", "a.b", "b.a", "a.b.c", "", ".", "c"])
ROWS = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(), max_size=1),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
).filter(lambda row: isinstance(row, dict))


@given(ROWS, KEYS)
def test_a_path_is_the_key_of_that_name_or_else_leads_from_object_to_object(row: dict[str, Any], path: str) -> None:
    """For any names, with dots in any place; only the whole name may have a dot of its own."""
    assert find_field(row, path, ABSENT) == PlainRules.field(row, path)


@given(ROWS, KEYS)
def test_produce_finds_the_same(row: dict[str, Any], path: str) -> None:
    """``--field`` and ``text_fields`` mean the same field."""
    assert finder(path)(row) == find_field(row, path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", "key"),
        ("a.c", None),
        ("x.y.z", 1),
        ("x.y", {"z": 1}),
        ("x.y.z.w", "absent"),
        ("x.w", "absent"),
        ("n.b", "absent"),
        ("l.0", "absent"),
        ('q."r.s"', 2),
        ('q."r.s".t', "absent"),
        ('"q".t."u.v".w', 3),
        ('"a.b"', "key"),
        ('q."r', 4),
    ],
)
def test_each_path_is_what_people_would_expect(path: str, expected: object) -> None:
    """The exact key first, null included; arrays are not gone into; quoted parts may hold dots."""
    row: dict[str, Any] = {"a.b": "key", "a": {"b": "path", "c": None}, "x": {"y": {"z": 1}}, "n": None, "l": [1]}
    row["q"] = {"r.s": 2, "t": {"u.v": {"w": 3}}, '"r': 4}
    assert find_field(row, path, "absent") == expected
