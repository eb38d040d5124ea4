"""What is quoted of a stream, in lines and pictures: each number is one of its totals, none is divided by nothing."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given

from tests.app.milling.test_columns import with_steps
from tests.mills import RECIPE, make_source
from tests.strategies import totals
from tokenmill.app import funnel
from tokenmill.app.funnel import FunnelRow, Retention
from tokenmill.app.milling.steps.language import LanguageStep
from tokenmill.app.tools.trial import Trial
from tokenmill.errors import InputError
from tokenmill.wire.totals import Amount, Figures, StepFigures, Totals

FIGURES = Figures(
    [
        StepFigures("regex", Amount(10, 1000), Amount(7, 600), {"regex.b": Amount(1, 100), "regex.a": Amount(2, 300)}),
        StepFigures("not_empty", Amount(7, 600), Amount(6, 600), {"empty": Amount(1, 0)}),
    ]
)
TOTALS = Totals(
    records=12, kept=5, tombstones=2, filtered=Counter({"regex.a": 2, "regex.b": 1, "empty": 1, "no_tokens": 1}),
    tokens=420, figures=FIGURES,
)  # fmt: skip


def test_lines_can_be_pasted() -> None:
    assert Retention(TOTALS, padding=80, seconds=2.0, timed_tokens=4000).lines() == [
        "Data retention: 50.0 % (5 of 10 documents)",
        "Text retention: 60.0 % (600 of 1,000 bytes)",
        "Tokens kept: 420, on average 84.0 a document",
        "Efficiency: 84.0 % of tokens in blocks are text, the other 80 are padding",
        "From the first message to the last: 2 s with all pauses, so 2,000 tokens a second",
    ]


def test_what_the_packing_leaves_out_is_said() -> None:
    """Tails of documents are no filtered documents, so the funnel does not have them."""
    cut = Totals(records=5, kept=5, tokens=900, packing=Counter(left_out=100, shortened=2, padding=300))
    retention = Retention(cut, padding=300, blocks=5)
    assert retention.lines()[-1:] == [
        "Left out: 10.00 % of the documents' tokens (100), the ends of 2 documents that the packing shortens"
    ]
    assert retention.to_dict()["left_out_tokens"] == 100
    assert not any("Left out" in line for line in Retention(TOTALS).lines())


def test_the_funnel_follows_the_recipe() -> None:
    assert Retention(TOTALS).funnel() == [
        FunnelRow("regex", "regex.a", 2, 300),
        FunnelRow("regex", "regex.b", 1, 100),
        FunnelRow("not_empty", "empty", 1, 0),
        FunnelRow(funnel.UNNAMED, "no_tokens", 1, None),
    ]


def test_one_line_has_the_most_frequent_reasons_first() -> None:
    plain = Totals(records=5, kept=1, filtered=Counter(empty=1, min_chars=3))
    assert funnel.kept_line(plain) == "kept 1 of 5 documents: 3 min_chars, 1 empty"
    assert funnel.kept_line(Totals(kept=1234)) == "kept 1,234 of 1,234 documents"


@given(totals)
def test_any_totals_can_be_told(found: Totals) -> None:
    retention = Retention(found)
    assert 0 <= retention.share <= 1
    assert 0 <= retention.efficiency <= 1
    assert retention.lines()
    assert retention.to_dict()["documents"] == found.kept + found.filtered.total()


def test_nothing_is_told_of_nothing() -> None:
    retention = Retention(Totals())
    assert (retention.share, retention.average_tokens, retention.efficiency) == (0.0, 0.0, 1.0)
    assert (retention.tokens_per_second, retention.funnel()) == (None, [])


def test_bars_are_what_came_each_reason_and_what_is_kept() -> None:
    bars = funnel.funnel_bars(Retention(TOTALS))
    assert [bars[0], bars[-1]] == [("documents", 10), ("kept", 5)]
    assert [label for label, _ in bars[1:-1]] == ["regex.a", "regex.b", "empty", "no_tokens"]


def test_lengths_have_no_hole_between_the_shortest_and_the_longest() -> None:
    """A power of two without a document is a bar of nothing."""
    totals = TOTALS.copy()
    totals.figures.token_lengths.update({0: 1, 3: 4, 9: 0})
    assert funnel.length_bars(totals.figures.token_lengths) == [("1", 1), ("2 to 3", 0), ("4 to 7", 0), ("8 to 15", 4)]
    assert "tokens a document" in funnel.terminal_plot(Retention(totals))
    assert "tokens a document" not in funnel.terminal_plot(Retention(TOTALS))


def test_a_bar_is_as_long_as_its_number() -> None:
    title, most, half, few, none = funnel.terminal_bars("title", [("a", 1000), ("b", 500), ("c", 1), ("d", 0)])
    assert title == "title"
    assert (most.count("█"), half.count("█")) == (40, 20)
    assert few.endswith("▏")
    assert none.endswith("0")
    assert all(len(line) <= 80 for line in (most, half, few, none))


@pytest.mark.slow
def test_a_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    funnel.write_png(tmp_path / "a.png", {"one": Retention(TOTALS), "two": Retention(TOTALS)})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"--plot .* cannot be written"):
        funnel.write_png(tmp_path / "missing" / "a.png", {"one": Retention(TOTALS)})


def test_languages_are_named_by_their_documents_the_most_frequent_first() -> None:
    assert funnel.languages_line([("de", 2), ("en", 1200), ("fr", 2)]) == "en 1,200, de 2, fr 2"


def test_languages_that_are_not_carried_are_not_named() -> None:
    """But how they would be; a stream has the field with all of its documents, or with none."""
    pytest.importorskip("fasttext")
    source = with_steps(make_source(RECIPE), [LanguageStep(label_only=True)])
    trial = Trial(source.stages, [RECIPE])
    trial.feed([b"A text in English, and another sentence of it."], ["a"])
    spoken = trial.result().totals.figures.languages
    said = funnel.languages_line([(name, amount.documents) for name, amount in spoken.items()])
    assert said == 'not carried; documents say theirs with metadata_fields = ["language"]'
