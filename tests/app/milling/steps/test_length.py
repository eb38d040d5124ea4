"""Texts within bounds."""

from typing import Any

import pytest

from tests.app.milling.steps.curated import opened, reason
from tokenmill.errors import SettingsError


@pytest.mark.parametrize(
    ("values", "text", "wanted"),
    [
        ({"min_chars": 3}, "ab", "min_chars"),
        ({"min_chars": 3}, "abc", ""),
        ({"max_chars": 3}, "abcd", "max_chars"),
        ({"max_chars": 3}, "äöü", ""),
        ({"min_words": 2}, " one ", "min_words"),
        ({"max_words": 2}, "one two\u2003three", "max_words"),
        ({"max_words": 0}, " ", ""),
        ({"min_lines": 2}, "one\n \n\n", "min_lines"),
        ({"max_lines": 1}, "one\n\ntwo", "max_lines"),
        ({"min_words": 2, "min_chars": 9}, "one", "min_chars"),
        ({}, "", ""),
    ],
)
def test_a_text_outside_a_bound_is_filtered_out(values: dict[str, Any], text: str, wanted: str) -> None:
    """For the first bound that it is not within: characters, words, lines."""
    assert reason(opened("length", **values), text) == wanted


def test_bounds_that_exclude_each_other_are_refused() -> None:
    """They would filter out everything."""
    with pytest.raises(SettingsError, match="between 5 and 2 words: correct min_words or max_words"):
        opened("length", min_words=5, max_words=2)
    with pytest.raises(SettingsError, match="between -1"):
        opened("length", min_chars=-1)
