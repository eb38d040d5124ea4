"""What every step promises."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps import user_functions
from tests.app.milling.steps.curated import opened
from tests.mills import RECIPE
from tests.strategies import texts
from tokenmill.app.milling.curation.words import english
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected, Step, open_steps
from tokenmill.app.milling.steps.protocol import counting_key, each_alone, step_labels
from tokenmill.documents import Document
from tokenmill.errors import RecordError

DRAFT = replace(
    RECIPE,
    steps=(),
    normalize="NFC",
    min_chars=3,
    function=f"{user_functions.__name__}:picky",
    pipeline=(
        {"name": "url", "extra_domains": ["a.b"]},
        {"name": "language"},
        *({"name": name} for name in ("gopher_repetition", "gopher_quality", "c4_quality", "c4_paragraph")),
        {"name": "fineweb_quality"},
        {"name": "words", "words": ["a b", "c"]},
        {"name": "regex", "regex_exp": "b$"},
        {"name": "length", "min_words": 2},
        {"name": "sample"},
        {"name": "replace_pii"},
        {"name": "fix_unicode", "normalization": "NFC"},
    ),
    metadata_fields=("url", "language"),
    max_fields_bytes=1000,
)
STEPS = open_steps(DRAFT)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@given(written=st.lists(texts | st.text(" \n\u0301e\u212bab@.c&", max_size=8), max_size=6))
def test_many_documents_get_the_answers_that_each_gets_alone(step: Step, written: list[str]) -> None:
    documents = [Document(text, number, {"url": f"http://{text}"}) for number, text in enumerate(written)]
    columns = DocumentColumns.of(documents)
    answers = list(step.many(columns))
    wanted = {number: answer for number, document in enumerate(documents) if (answer := step(document)) is not document}
    assert answers == list(wanted.items())
    assert columns.texts == written


@pytest.mark.parametrize(
    ("name", "values", "text", "detail"),
    [
        ("c4_paragraph", {}, "x" * 199, "0 lines of 200 characters, fewer than 3"),
        ("c4_quality", {}, "no", "0 sentences left, fewer than 5"),
        ("fineweb_quality", {}, "a line without an end", "0 of lines end with punctuation, under 0.12"),
        ("gopher_quality", {}, "word " * 49, "49 words, fewer than 50"),
        ("gopher_repetition", {}, "a\n\na\n\na", "0.6667 of paragraphs occurred before, over 0.3"),
        ("regex", {"regex_exp": "g.{3}n"}, "the grain", "at byte 4: 'grain'"),
        ("words", {"words": ["very bad"]}, "very bad good", "2 of 3 words are listed, the first is 'very bad'"),
    ],
)
def test_what_decided_is_told(name: str, values: dict[str, Any], text: str, detail: str) -> None:
    answer = opened(name, **values)(Document(text))
    assert isinstance(answer, Rejected)
    assert answer.detail == detail


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("c4_quality", "filter_policy", False),
        ("fineweb_quality", "new_line_ratio", 0.5),
        ("gopher_quality", "min_doc_words", 7),
        ("gopher_repetition", "dup_line_frac", 0.5),
    ],
)
def test_a_filter_of_english_describes_parameters_and_words(name: str, parameter: str, value: Any) -> None:
    """Another spaCy is another stream."""
    said = opened(name, **{parameter: value}).describe()
    assert (said["name"], said[parameter], said["words"]) == (name, value, english().describe())


def test_what_a_step_raises_is_an_answer() -> None:
    raised = RecordError("odd", "so it is")

    def refusing(document: Document) -> Document:
        if document.text == "b":
            raise raised
        return document

    seen: list[int] = []
    columns = DocumentColumns.of(Document(text) for text in "abc")
    assert list(each_alone(refusing, columns, seen.append)) == [(1, raised)]
    assert seen == [0, 1, 2]


def test_later_steps_of_a_name_are_numbered() -> None:
    assert step_labels(["regex", "words", "regex", "regex"]) == ("regex", "words", "regex_2", "regex_3")


def test_reasons_of_short_forms_are_counted_as_they_are() -> None:
    """Totals of earlier streams go on; all others have the step's label before them."""
    assert counting_key("not_empty", "empty") == "empty"
    assert counting_key("function", "spam") == "spam"
    assert counting_key("regex_2", "matched") == "regex_2.matched"
