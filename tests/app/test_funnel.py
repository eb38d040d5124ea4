"""What is quoted of a stream: each number is one of its totals, and nothing is divided by nothing."""

from collections import Counter

from hypothesis import given

from tests.strategies import totals
from tokenmill.app.funnel import UNNAMED, FunnelRow, Retention, kept_line
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
        FunnelRow(UNNAMED, "no_tokens", 1, None),
    ]


def test_one_line_has_the_most_frequent_reasons_first() -> None:
    plain = Totals(records=5, kept=1, filtered=Counter(empty=1, min_chars=3))
    assert kept_line(plain) == "kept 1 of 5 documents: 3 min_chars, 1 empty"
    assert kept_line(Totals(kept=1234)) == "kept 1,234 of 1,234 documents"


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
    assert retention.tokens_per_second is None
    assert retention.funnel() == []
