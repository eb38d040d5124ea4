"""Texts in capitals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import changed, opened
from tokenmill.app.milling.steps.fold_capitals import folded


@pytest.mark.parametrize(
    ("text", "small"),
    [
        ("THE Mill 1234567890", "the mill 1234567890"),
        ("The MILL", "the mill"),
        ("The MiLls", "The MiLls"),
        ("\u4f7f\u7528 GPU \u548c", "\u4f7f\u7528 GPU \u548c"),
        ("\u00c0\u00c9\u0130 \u01c5", "\u00e0\u00e9i \u01c6"),
        ("12.5 %", "12.5 %"),
        ("", ""),
    ],
)
def test_a_text_is_folded_where_most_letters_are_capitals(text: str, small: str) -> None:
    """Digits and spaces are no letters; letters that have no case count as others."""
    assert folded(text) == changed(opened("fold_capitals"), text) == small


@given(st.text())
def test_folding_changes_case_alone_and_nothing_twice(text: str) -> None:
    once = folded(text)
    assert len(once) == len(text)
    assert folded(once) == once
    assert [a for a in text if not a.isupper()] == [b for a, b in zip(text, once, strict=True) if not a.isupper()] or (
        any(a.istitle() for a in text)
    )
