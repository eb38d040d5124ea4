"""The filter by lines, as FineWeb has it; tests/peers/curation compares it with datatrove's."""

import pytest

from tests.app.milling.steps.curated import reason
from tokenmill.app.milling.steps.fineweb_quality import FinewebQuality

pytest.importorskip("spacy")
LONG = "a line of more than thirty characters"


def looser(**bounds: float) -> FinewebQuality:
    """Return the filter with these bounds alone."""
    nothing = {"line_punct_thr": 0.0, "short_line_thr": 1.0, "char_duplicates_ratio": 1.0, "new_line_ratio": 1e9}
    return FinewebQuality(**(nothing | bounds))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LONG}.", ""),
        ("", "empty"),
        (" \n\t\n", "empty"),
        (LONG, "line_punct_ratio"),
        (f"{LONG}. ", "line_punct_ratio"),
        ("Short.\nLines.\nHere.", "short_line_ratio"),
        (f"{LONG}!\n{LONG}!", "char_dup_ratio"),
        ("word, " * 9 + "end." + "\n" * 12 + LONG, "list_ratio"),
        (f"{LONG}।", ""),
    ],
)
def test_each_rule_has_a_reason(text: str, expected: str) -> None:
    assert reason(FinewebQuality(), text) == expected


@pytest.mark.parametrize(
    ("name", "bound", "beyond", "text", "expected"),
    [
        ("line_punct_thr", 0.5, 0.51, f"{LONG}\n\n{LONG}?", "line_punct_ratio"),
        ("short_line_thr", 0.5, 0.49, f"{'x' * 30}\n{'x' * 31}", "short_line_ratio"),
        ("char_duplicates_ratio", 0.4, 0.39, "ab\n\nab\nc", "char_dup_ratio"),
        ("new_line_ratio", 0.5, 0.49, "one two\nthree four\n", "list_ratio"),
    ],
)
def test_a_bound_itself_is_within(name: str, bound: float, beyond: float, text: str, expected: str) -> None:
    assert reason(looser(**{name: bound}), text) == ""
    assert reason(looser(**{name: beyond}), text) == expected


def test_a_text_of_the_one_word_that_is_left_out_has_a_verdict() -> None:
    """There is no word to divide by."""
    assert reason(looser(), "IS_ALPHA\n\n") == ""


def test_texts_without_any_punctuation_can_be_kept() -> None:
    step = FinewebQuality(line_punct_exclude_zero=True)
    assert reason(step, LONG) == ""
    assert reason(step, "\n".join([f"{LONG}."] + [f"{LONG} {number}" for number in range(9)])) == "line_punct_ratio"


def test_what_ends_a_sentence_can_be_named() -> None:
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG};") == ""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG} end") == ""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG}.") == "line_punct_ratio"
