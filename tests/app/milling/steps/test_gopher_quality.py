"""The filter by words, symbols and lines, as Gopher and datatrove have it."""

from dataclasses import fields

import pytest
from hypothesis import given

from tests.app.milling.curation.texts import curious_texts
from tests.app.milling.steps.curated import reason
from tokenmill.app.milling.curation.words import SYMBOLS, english
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.gopher_quality import GopherQuality
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document

pytest.importorskip("spacy")
GOOD = "We have to look at the words of that text with care and patience. " * 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, ""),
        ("", "gopher_short_doc"),
        ("the of " * 24 + "the", "gopher_short_doc"),
        ("word " * 49 + ". ! ? " * 20, "gopher_short_doc"),
        ("words that " * 50_001, "gopher_long_doc"),
        ("to be " * 50, "gopher_below_avg_threshold"),
        ("responsibility and considerations " * 50, "gopher_above_avg_threshold"),
        (GOOD + "# " * 10, "gopher_too_many_hashes"),
        (GOOD + "hm... " * 5 + "hm… " * 5, "gopher_too_many_ellipsis"),
        ("- We have the words that care\n  • for the text and that is all\n" * 10, "gopher_too_many_bullets"),
        (
            "We have all the words that care for the text and we look at them with all our patience...\n" * 4,
            "gopher_too_many_end_ellipsis",
        ),
        (GOOD + "123 " * 30, "gopher_below_alpha_threshold"),
        ("Nothing here stands between these long sentences, which lack common parts. " * 6, "gopher_enough_stop_words"),
        (GOOD.upper(), "gopher_enough_stop_words"),
    ],
)
@pytest.mark.cases(5)
def test_each_rule_has_a_reason(text: str, expected: str) -> None:
    """With the defaults."""
    assert reason(GopherQuality(), text) == expected


@pytest.mark.parametrize(
    ("name", "bound", "beyond", "text", "expected"),
    [
        ("min_doc_words", 3, 4, "words, that have!", "short_doc"),
        ("max_doc_words", 3, 2, "words, that have!", "long_doc"),
        ("min_avg_word_length", 4, 4.1, "the that these.", "below_avg_threshold"),
        ("max_avg_word_length", 4, 3.9, "the that these.", "above_avg_threshold"),
        ("max_symbol_word_ratio", 0.25, 0.24, "# the that these", "too_many_hashes"),
        ("max_symbol_word_ratio", 0.5, 0.49, "the… that...", "too_many_ellipsis"),
        ("max_bullet_lines_ratio", 0.5, 0.49, " - the\nthat -\n\t•\n\n", "too_many_bullets"),
        ("max_ellipsis_lines_ratio", 0.5, 0.49, "the... \n…that\n…\n\n", "too_many_end_ellipsis"),
        ("max_non_alpha_words_ratio", 0.5, 0.51, "the 1a 2 !", "below_alpha_threshold"),
        ("min_stop_words", 2, 3, "the that the The", "enough_stop_words"),
    ],
)
def test_a_bound_itself_is_within(name: str, bound: float, beyond: float, text: str, expected: str) -> None:
    """And the next one filters the text out; no other bound is looked at."""
    nothing = dict.fromkeys((field.name for field in fields(GopherQuality) if field.name != "stop_words"), 0)
    assert reason(GopherQuality(**(nothing | {name: bound})), text) == ""  # type: ignore[arg-type]
    assert reason(GopherQuality(**(nothing | {name: beyond})), text) == f"gopher_{expected}"  # type: ignore[arg-type]


@given(curious_texts)
def test_it_agrees_with_counts_of_another_kind(text: str) -> None:
    """Counted once, all in one; with bounds that texts of a few words reach."""
    step = GopherQuality(min_doc_words=3, max_doc_words=20, min_avg_word_length=2, max_avg_word_length=8)
    words = english().words(text)
    solid = [word for word in words if set(word) - SYMBOLS]
    mean = sum(map(len, solid)) / max(1, len(solid))
    lines = text.splitlines()
    count, line_count = max(1, len(words)), max(1, len(lines))
    rules = {
        "gopher_short_doc": len(solid) < 3,
        "gopher_long_doc": len(solid) > 20,
        "gopher_below_avg_threshold": mean < 2,
        "gopher_above_avg_threshold": mean > 8,
        "gopher_too_many_hashes": list(text).count("#") / count > 0.1,
        "gopher_too_many_ellipsis": (len(text.split("...")) + len(text.split("…")) - 2) / count > 0.1,
        "gopher_too_many_bullets": sum(line.strip()[:1] in {"•", "-"} for line in lines) / line_count > 0.9,
        "gopher_too_many_end_ellipsis": sum(line.strip()[-3:] == "..." or line.strip()[-1:] == "…" for line in lines)
        / line_count
        > 0.3,
        "gopher_below_alpha_threshold": sum(
            word.upper() != word.lower() or any(c.isalpha() for c in word) for word in words
        )
        / count
        < 0.8,
        "gopher_enough_stop_words": sum(word in words for word in step.stop_words) < 2,
    }
    assert reason(step, text) == next((name for name, broken in rules.items() if broken), "")


@given(curious_texts)
def test_no_bound_at_all_keeps_every_text(text: str) -> None:
    """0 and null stand for no bound; nothing is divided by zero."""
    nothing = dict.fromkeys((field.name for field in fields(GopherQuality) if field.name != "stop_words"), 0)
    assert reason(GopherQuality(**nothing), text) == ""  # type: ignore[arg-type]
    nulls: dict[str, None] = dict.fromkeys(nothing)
    assert reason(GopherQuality(**nulls), text) == ""  # type: ignore[arg-type]


def test_a_text_without_words_breaks_no_bound_of_lengths() -> None:
    """A share of nothing is 0, where datatrove divides by zero."""
    assert reason(GopherQuality(min_doc_words=0), "") == "gopher_below_alpha_threshold"
    assert reason(GopherQuality(min_doc_words=0), " \n") == "gopher_below_alpha_threshold"


def test_the_numbers_that_decided_are_told() -> None:
    """For people."""
    answer = GopherQuality()(Document("word " * 49, None, {}))
    assert isinstance(answer, Rejected)
    assert answer.detail == "49 words, fewer than 50"


def test_many_answers_as_each_alone() -> None:
    """For those that are filtered out."""
    columns = DocumentColumns.without_fields([GOOD, "short", GOOD], [None] * 3)
    assert list(GopherQuality().many(columns)) == [(1, Rejected("gopher_short_doc"))]


def test_it_describes_parameters_and_words() -> None:
    """Another spaCy is another stream."""
    said = GopherQuality(min_doc_words=7).describe()
    assert said["name"] == "gopher_quality"
    assert said["min_doc_words"] == 7
    assert said["words"] == english().describe()
