"""Patterns."""

from typing import Any

import pytest

from tests.app.milling.steps.curated import opened, reason
from tokenmill.errors import SettingsError


@pytest.mark.parametrize(
    ("values", "text", "wanted"),
    [
        ({"regex_exp": "b+"}, "abba", "matched"),
        ({"regex_exp": "b+"}, "aa", ""),
        ({"regex_exp": "b+", "keep_matched": True}, "aa", "not_matched"),
        ({"regex_exp": "(?i)É"}, "é", "matched"),
        ({"regex_exp": r"\p{Han}{2}"}, "漢字", "matched"),
        ({"regex_exp": "^$"}, "", "matched"),
        ({"regex_exp": "\x00"}, "a\x00", "matched"),
    ],
)
def test_documents_are_filtered_by_a_pattern(values: dict[str, Any], text: str, wanted: str) -> None:
    assert reason(opened("regex", **values), text) == wanted


@pytest.mark.parametrize("pattern", ["(a", r"(a)\1", "(?=a)", "a{1001}"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(SettingsError, match=r"^step 1 \(regex\): regex_exp = .* is no pattern of RE2: "):
        opened("regex", regex_exp=pattern)
