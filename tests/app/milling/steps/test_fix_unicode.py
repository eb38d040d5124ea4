"""ftfy."""

import time
from unicodedata import normalize

import ftfy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import changed, opened
from tokenmill.app.milling.steps.basic import with_sorted_marks
from tokenmill.app.milling.steps.fix_unicode import FIX_FAILED, FixUnicode
from tokenmill.documents import Document
from tokenmill.errors import RecordError

STEP = FixUnicode()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("âœ” No problems", "✔ No problems"),
        ("a &amp; b", "a & b"),
        ("<i>a &amp; b", "<i>a &amp; b"),
        ("\x1b[31mred", "red"),
        ("a\x00b", "ab"),
        ("“curly” ﬁ", "“curly” ﬁ"),
        ("plain\n", "plain\n"),
    ],
)
def test_text_is_repaired(text: str, wanted: str) -> None:
    assert changed(STEP, text) == wanted


def test_parameters_are_ftfys() -> None:
    assert changed(opened("fix_unicode", uncurl_quotes=True, fix_latin_ligatures=True), "“ﬁ”") == '"fi"'
    assert changed(opened("fix_unicode", normalization="NFC"), "e\u0301") == "\u00e9"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("&;#<\r\x1b[â€œ\x00\ufeff"), max_size=30))
def test_what_is_not_looked_at_would_not_change(text: str) -> None:
    """ASCII without ampersands and control characters."""
    assert changed(STEP, text) == ftfy.fix_text(text, STEP._config)


def test_a_text_over_which_ftfy_raises_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ValueError("its own words")

    monkeypatch.setattr(ftfy, "fix_text", broken)
    with pytest.raises(RecordError, match="its own words") as caught:
        STEP(Document("é"))
    assert caught.value.reason == FIX_FAILED


def test_normalizing_marks_takes_no_square_of_time() -> None:
    """What ftfy looks at together is long enough for that."""
    text = "\u0f73" * 100_000
    began = time.process_time()
    fixed = FixUnicode(normalization="NFD")(Document(text))
    assert fixed == Document(normalize("NFD", with_sorted_marks("NFD", text)))
    assert time.process_time() - began < 10
