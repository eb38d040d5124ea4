"""The filter by lines, as FineWeb and datatrove have it."""

import pytest
from hypothesis import given

from tests.app.milling.curation.texts import curious_texts
from tests.app.milling.steps.curated import reason
from tokenmill.app.milling.curation.words import TERMINAL, english
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.fineweb_quality import FinewebQuality
from tokenmill.app.milling.steps.protocol import Rejected

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
    """With the defaults."""
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
    """And the next one filters the text out."""
    assert reason(looser(**{name: bound}), text) == ""
    assert reason(looser(**{name: beyond}), text) == expected


@given(curious_texts)
def test_it_agrees_with_counts_of_another_kind(text: str) -> None:
    """Counted line by line."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        assert reason(FinewebQuality(), text) == "empty"
        return
    stops, short, again, seen = 0, 0, 0, []
    for line in lines:
        stops += line[-1] in TERMINAL
        short += len(line) < 31
        again += len(line) if line in seen else 0
        seen.append(line)
    rules = {
        "line_punct_ratio": stops / len(lines) < 0.12,
        "short_line_ratio": short / len(lines) > 0.67,
        "char_dup_ratio": again / len("".join(text.split("\n"))) > 0.01,
        "list_ratio": (len(text.split("\n")) - 1) / (len(english().words(text)) or 1e9) > 0.3,
    }
    assert reason(FinewebQuality(), text) == next((name for name, broken in rules.items() if broken), "")


def test_a_text_of_the_one_word_that_is_left_out_has_a_verdict() -> None:
    """There is no word to divide by."""
    assert reason(looser(), "IS_ALPHA\n\n") == ""


def test_texts_without_any_punctuation_can_be_kept() -> None:
    """Those with a little are not."""
    step = FinewebQuality(line_punct_exclude_zero=True)
    assert reason(step, LONG) == ""
    assert reason(step, "\n".join([f"{LONG}."] + [f"{LONG} {number}" for number in range(9)])) == "line_punct_ratio"


def test_what_ends_a_sentence_can_be_named() -> None:
    """Instead of the terminal punctuation of all scripts."""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG};") == ""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG} end") == ""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG}.") == "line_punct_ratio"


def test_many_answers_as_each_alone() -> None:
    """With the numbers that decided, for people."""
    columns = DocumentColumns.without_fields([LONG, f"{LONG}."], [None] * 2)
    [(index, answer)] = FinewebQuality().many(columns)
    assert (index, answer) == (0, Rejected("line_punct_ratio"))
    assert isinstance(answer, Rejected)
    assert answer.detail == "0 of lines end with punctuation, under 0.12"
