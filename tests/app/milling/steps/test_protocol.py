"""What every step promises; which steps there are, in which order; and a user's own function as one of them."""

import re
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps import user_functions
from tests.app.milling.steps.curated import opened
from tests.app.milling.tokenizers.panicking import HARMFUL
from tests.mills import RECIPE
from tests.strategies import texts
from tokenmill.app.milling.curation.words import english
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected, Step, open_steps
from tokenmill.app.milling.steps.protocol import counting_key, each_alone, step_labels
from tokenmill.documents import Document
from tokenmill.errors import RecordError, SettingsError

HERE = user_functions.__name__
DRAFT = replace(RECIPE, steps=(), max_text_bytes=100, max_id_bytes=10, max_fields_bytes=30)


def _through(text: str, **settings: object) -> Document | Rejected:
    steps = open_steps(replace(DRAFT, **settings))  # type: ignore[arg-type]
    start: Document | Rejected = Document(text)
    return reduce(lambda result, step: result if isinstance(result, Rejected) else step(result), steps, start)


def test_without_settings_only_empty_text_is_filtered() -> None:
    """A step that would do nothing is not there, so it is in no fingerprint."""
    assert [step.name for step in open_steps(DRAFT)] == ["not_empty"]
    assert _through(" ") == Rejected("empty")


def test_steps_are_applied_in_their_order() -> None:
    """Normalise, function, not empty, minimum length: the filters see the text that would be tokenized."""
    steps = open_steps(replace(DRAFT, min_chars=3, function=f"{HERE}:shouted", normalize="NFKC"))
    assert [step.name for step in steps] == ["normalize", "function", "not_empty", "min_chars"]
    assert _through("\ufb01ne", min_chars=4, function=f"{HERE}:shouted", normalize="NFKC") == Document("FINE")
    assert _through("\ufb01n", min_chars=4, function=f"{HERE}:shouted", normalize="NFKC") == Rejected("min_chars")


def test_the_list_of_steps_stands_between_the_function_and_the_filters_of_all() -> None:
    pipeline = ({"name": "fix_unicode"}, {"name": "length", "max_words": 2}, {"name": "words", "words": "sha256:ab"})
    recipe = replace(DRAFT, normalize="NFC", min_chars=1, function=f"{HERE}:shouted", pipeline=pipeline)
    steps = open_steps(recipe, {"ab": b"bad\n"})
    names = ["normalize", "function", "fix_unicode", "length", "words", "not_empty", "min_chars"]
    assert [step.name for step in steps] == names
    assert _through("a &amp; b c", pipeline=pipeline[:2]) == Rejected("max_words")


def test_wrong_settings_are_named() -> None:
    for name, value in (("normalize", "nfc"), ("min_chars", -1)):
        with pytest.raises(SettingsError, match=f"^{name} = "):
            _through("text", **{name: value})


def _opened(function: str) -> Step:
    return open_steps(replace(DRAFT, function=f"{HERE}:{function}", metadata_fields=("label",)))[0]


def test_a_function_changes_text_id_and_carried_fields_and_describes_path_and_version() -> None:
    assert _opened("shouted")(Document("abc", 1, {})) == Document("ABC", 1, {"label": "loud"})
    assert _opened("tokenizing")(Document("harmless")) == Document("8")
    assert _opened("shouted").describe() == {"name": "function", "path": f"{HERE}:shouted", "version": "3"}


@pytest.mark.parametrize(
    ("text", "reason"), [("spam", "spam"), ("undeclared", "rejected"), ("odd", "rejected"), ("none", "rejected")]
)
def test_only_declared_reasons_come_out(text: str, reason: str) -> None:
    step = _opened("picky")
    assert step(Document(text)) == Rejected(reason)
    assert step(Document("other")) == Document("other")


@pytest.mark.parametrize(
    ("function", "text", "shown"),
    [
        ("failing", "it", "ValueError: cannot do it"),
        ("failing", "unspeakable", "UnspeakableError"),
        ("failing", "\x00\ue000\n" * 1000, "ValueError"),
        # a step may call a tokenizer or a language model; its panic passes by every `except Exception` of ours
        ("tokenizing", HARMFUL, "panicked .*retry-limit-in-match"),
    ],
)
def test_what_it_raises_is_a_dead_letter_which_shows_text_escaped_and_cut(function: str, text: str, shown: str) -> None:
    with pytest.raises(RecordError, match=f"function_failed: .*{shown}") as caught:
        _opened(function)(Document(text))
    assert caught.value.detail.isascii()
    assert len(caught.value.detail) <= 500


@pytest.mark.parametrize("text", list(user_functions.ANSWERS))
def test_what_is_no_document_never_gets_out_of_it(text: str) -> None:
    expected = {"long text": "too_large", "long id": "id_too_long", "long field": "fields_too_long"}
    with pytest.raises(RecordError, match=f"^{expected.get(text, 'function_failed')}: "):
        _opened("wrong")(Document(text))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.app.milling.steps.user_functions", 'write "module:function"'),
        (":shouted", 'write "module:function"'),
        ("no_such_module:function", "ModuleNotFoundError"),
        (f"{HERE}:missing", "AttributeError"),
        (f"{HERE}:A_CONSTANT", "no plain function"),
        (f"{HERE}:asynchronous", "no plain function"),
        (f"{HERE}:unversioned", 'unversioned.version = "1"'),
        (f"{HERE}:bad_reasons", "its reasons must be"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_at_start(path: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^function = .*{re.escape(message)}"):
        open_steps(replace(DRAFT, function=path))


ALL = replace(
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
STEPS = open_steps(ALL)


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


def test_later_steps_of_a_name_are_numbered_and_reasons_of_short_forms_are_counted_as_they_are() -> None:
    """Totals of earlier streams go on; all others have the step's label before them."""
    assert step_labels(["regex", "words", "regex", "regex"]) == ("regex", "words", "regex_2", "regex_3")
    assert counting_key("not_empty", "empty") == "empty"
    assert counting_key("function", "spam") == "spam"
    assert counting_key("regex_2", "matched") == "regex_2.matched"
