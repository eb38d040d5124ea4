"""Pictures of a funnel: bars are as long as their numbers, and a terminal of 80 columns holds them."""

from pathlib import Path

import pytest

from tests.app.milling.test_columns import with_steps
from tests.app.test_funnel import TOTALS
from tests.mills import RECIPE, make_source
from tokenmill.app.funnel import (
    Retention,
    funnel_bars,
    languages_line,
    length_bars,
    terminal_bars,
    terminal_plot,
    write_png,
)
from tokenmill.app.milling.steps.language import LanguageStep
from tokenmill.app.tools.trial import Trial
from tokenmill.errors import InputError


def test_bars_begin_with_what_came_and_end_with_what_is_kept() -> None:
    bars = funnel_bars(Retention(TOTALS))
    assert bars[0] == ("documents", 10)
    assert bars[-1] == ("kept", 5)
    assert [label for label, _ in bars[1:-1]] == ["regex.a", "regex.b", "empty", "no_tokens"]


def test_lengths_have_no_hole_between_the_shortest_and_the_longest() -> None:
    """A power of two without a document is a bar of nothing."""
    totals = TOTALS.copy()
    totals.figures.token_lengths.update({0: 1, 3: 4, 9: 0})
    assert length_bars(totals.figures.token_lengths) == [("1", 1), ("2 to 3", 0), ("4 to 7", 0), ("8 to 15", 4)]
    assert "tokens a document" in terminal_plot(Retention(totals))
    assert "tokens a document" not in terminal_plot(Retention(TOTALS))


def test_a_bar_is_as_long_as_its_number() -> None:
    title, most, half, few, none = terminal_bars("title", [("a", 1000), ("b", 500), ("c", 1), ("d", 0)])
    assert title == "title"
    assert (most.count("█"), half.count("█")) == (40, 20)
    assert few.endswith("▏")
    assert none.endswith("0")
    assert all(len(line) <= 80 for line in (most, half, few, none))


@pytest.mark.slow
def test_a_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_png(tmp_path / "a.png", {"one": Retention(TOTALS), "two": Retention(TOTALS)})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"--plot .* cannot be written"):
        write_png(tmp_path / "missing" / "a.png", {"one": Retention(TOTALS)})


def test_languages_are_named_by_their_documents() -> None:
    assert languages_line([("de", 2), ("en", 1200), ("fr", 2)]) == "en 1,200, de 2, fr 2"


def test_languages_that_are_not_carried_are_not_named() -> None:
    """But how they would be; a stream has the field with all of its documents, or with none."""
    pytest.importorskip("fasttext")
    source = with_steps(make_source(RECIPE), [LanguageStep(label_only=True)])
    trial = Trial(source.stages, [RECIPE])
    trial.feed([b"A text in English, and another sentence of it."], ["a"])
    spoken = trial.result().totals.figures.languages
    said = languages_line([(name, amount.documents) for name, amount in spoken.items()])
    assert said == 'not carried; documents say theirs with metadata_fields = ["language"]'
