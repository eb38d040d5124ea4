"""The filter by words, symbols and lines, as Gopher has it; tests/peers/curation compares it with datatrove's."""

from dataclasses import fields

import pytest
from hypothesis import given

from tests.app.milling.curation.odd_pieces import curious_texts
from tests.app.milling.steps.curated import reason
from tokenmill.app.milling.steps.gopher_quality import GopherQuality

pytest.importorskip("spacy")
GOOD = "We have to look at the words of that text with care and patience. " * 5
NO_BOUNDS = dict.fromkeys((field.name for field in fields(GopherQuality) if field.name != "stop_words"), 0)


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
    assert reason(GopherQuality(**(NO_BOUNDS | {name: bound})), text) == ""  # type: ignore[arg-type]
    assert reason(GopherQuality(**(NO_BOUNDS | {name: beyond})), text) == f"gopher_{expected}"  # type: ignore[arg-type]


@given(curious_texts)
def test_no_bound_at_all_keeps_every_text(text: str) -> None:
    """0 and null stand for no bound; nothing is divided by zero."""
    assert reason(GopherQuality(**NO_BOUNDS), text) == ""  # type: ignore[arg-type]
    nulls: dict[str, None] = dict.fromkeys(NO_BOUNDS)
    assert reason(GopherQuality(**nulls), text) == ""  # type: ignore[arg-type]


def test_a_text_without_words_breaks_no_bound_of_lengths() -> None:
    """A share of nothing is 0, where datatrove divides by zero."""
    assert reason(GopherQuality(min_doc_words=0), "") == "gopher_below_alpha_threshold"
    assert reason(GopherQuality(min_doc_words=0), " \n") == "gopher_below_alpha_threshold"
