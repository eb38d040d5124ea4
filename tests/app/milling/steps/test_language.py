"""Languages."""

import pytest

from tests.app.milling.steps.curated import PLAIN, opened, reason
from tokenmill.app.milling.curation.fast_language import read_model
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.milling.steps.language import CODES, FIRST_LOOK, LanguageStep, model_file
from tokenmill.app.milling.steps.pipeline import open_pipeline
from tokenmill.documents import FIELDS_TOO_LONG, Document, Limits
from tokenmill.errors import RecordError

GERMAN = "Die Mühle mahlt das Korn, das die Bauern bringen, und das Mehl wird in der Stadt verkauft.\n"


def test_texts_in_other_languages_are_filtered_out() -> None:
    step = opened("language", languages=["en"])
    assert reason(step, PLAIN * 3) == ""
    assert reason(step, GERMAN * 3) == "other_language"
    assert reason(opened("language"), GERMAN) == ""
    assert reason(opened("language"), "x 9 7 q 0") == "low_score"
    assert reason(opened("language", label_only=True, languages=["en"]), GERMAN) == ""
    assert reason(opened("language"), "") == "low_score"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", PLAIN),
        ("de", GERMAN),
        ("ru", "Мельница мелет зерно, которое приносят крестьяне, а муку продают в городе."),  # noqa: RUF001 - Cyrillic
        ("el", "Ο μύλος αλέθει το σιτάρι που φέρνουν οι αγρότες, και το αλεύρι πωλείται στην πόλη."),  # noqa: RUF001 - Greek
    ],
)
def test_capitals_are_told_as_small_letters_are(language: str, text: str) -> None:
    """A headline, a contract, an old telegram: the model alone takes English capitals for Japanese."""
    step = opened("language", languages=[language])
    assert [reason(step, one) for one in (text, text.upper(), f"1,000,000.00 {text.upper()}")] == ["", "", ""]


def test_a_settled_recipe_keeps_the_rules_that_it_has() -> None:
    """Its fingerprint, too: a stream that was made before goes on as it was."""
    limits = Limits(1000, 20, 20)
    before = open_pipeline([{"name": "language"}], limits=limits, rules={"language": 1})[0]
    unnamed, now, later = (
        open_pipeline([{"name": "language"}], limits=limits, rules=rules)[0] for rules in ({}, None, {"language": 9})
    )
    capitals = Document((PLAIN * 3).upper(), None)
    assert before(capitals) == unnamed(capitals) == Rejected("low_score")
    assert now(capitals) == later(capitals) == capitals
    assert [step.describe()["version"] for step in (before, unnamed, now, later)] == [1, 1, 3, 3]


@pytest.mark.parametrize("white", ["\u00a0", "\u2003", "\u3000", "\r\n", "\t" * 30])
def test_white_space_of_any_kind_and_length_is_a_space(white: str) -> None:
    text = PLAIN.replace(" ", white)
    for step in (LanguageStep(), LanguageStep(beginning=150)):
        assert step.look_at(text) == step.look_at(PLAIN)
        assert step.look_at(white * 2000 + text) == step.look_at(PLAIN)
    before = LanguageStep().by_rules(2)
    assert before.look_at("\n" * 2000 + PLAIN)[1] < 0.2
    assert before.look_at(PLAIN.replace(" ", "\u00a0"))[0] != "en"


def test_fields_are_set_that_the_stream_carries() -> None:
    document = Document(GERMAN * 3, 7, {"label": "x"})
    both = opened("language", metadata_fields=("label", "language_score", "language"))(document)
    assert isinstance(both, Document)
    assert both.fields["language"] == "de"
    assert 0.65 <= float(both.fields["language_score"] or 0) <= 1
    assert both.fields["label"] == "x"
    assert opened("language", metadata_fields=("label",))(document) is document


def test_fields_stay_within_their_limit() -> None:
    step = LanguageStep().within(("language", "label"), Limits(1000, 20, 20))
    with pytest.raises(RecordError, match=f"^{FIELDS_TOO_LONG}: "):
        step(Document(PLAIN, None, {"label": "long"}))


def test_the_beginning_decides() -> None:
    step = opened("language", languages=["de"], beginning=400)
    assert reason(step, GERMAN * 5 + PLAIN * 50) == ""
    longer = opened("language", languages=["de"], beginning=4000)
    assert reason(longer, (GERMAN * 3)[:FIRST_LOOK] + PLAIN * 50) == ""
    assert reason(step, "9 " * (FIRST_LOOK // 2) + GERMAN * 9) == ""
    assert reason(step, "9 " * 200 + GERMAN * 9) != ""


def test_the_model_is_described() -> None:
    said = opened("language").describe()
    assert said["model_sha256"] == "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
    assert said["fasttext_predict"]
    assert {label.removeprefix("__label__") for label in read_model(model_file())[1]} == CODES
