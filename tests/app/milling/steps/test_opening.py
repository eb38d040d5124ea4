"""Which steps there are, in which order, and a user's own function as one of them."""

import re
from dataclasses import replace
from functools import reduce

import pytest

from tests.app.milling.steps import user_functions
from tests.app.milling.tokenizers.panicking import HARMFUL
from tests.mills import RECIPE
from tokenmill.app.milling.steps import Rejected, Step, open_steps
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


@pytest.mark.parametrize(("settings", "named"), [({"normalize": "nfc"}, "normalize"), ({"min_chars": -1}, "min_chars")])
def test_wrong_settings_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=f"^{named} = "):
        _through("text", **settings)


def _opened(function: str) -> Step:
    return open_steps(replace(DRAFT, function=f"{HERE}:{function}", metadata_fields=("label",)))[0]


def test_a_function_changes_text_id_and_carried_fields() -> None:
    step = _opened("shouted")
    assert step(Document("abc", 1, {})) == Document("ABC", 1, {"label": "loud"})


def test_path_and_version_are_what_it_says_of_itself() -> None:
    """So a new version is a new fingerprint."""
    assert _opened("shouted").describe() == {"name": "function", "path": f"{HERE}:shouted", "version": "3"}


@pytest.mark.parametrize(
    ("text", "reason"), [("spam", "spam"), ("undeclared", "rejected"), ("odd", "rejected"), ("none", "rejected")]
)
def test_only_declared_reasons_come_out(text: str, reason: str) -> None:
    step = _opened("picky")
    assert step(Document(text)) == Rejected(reason)
    assert step(Document("other")) == Document("other")


@pytest.mark.parametrize(("text", "shown"), [("it", "ValueError: cannot do it"), ("unspeakable", "UnspeakableError")])
def test_what_it_raises_is_a_dead_letter(text: str, shown: str) -> None:
    with pytest.raises(RecordError, match=f"function_failed: .*{shown}"):
        _opened("failing")(Document(text))


def test_a_dead_letter_shows_untrusted_text_escaped_and_cut() -> None:
    """The text of a record may come back in the message of an exception."""
    with pytest.raises(RecordError) as caught:
        _opened("failing")(Document("\x00\ue000\n" * 1000))
    assert caught.value.detail.isascii()
    assert len(caught.value.detail) <= 500


@pytest.mark.parametrize("text", list(user_functions.ANSWERS))
def test_what_is_no_document_never_gets_out_of_it(text: str) -> None:
    expected = {"long text": "too_large", "long id": "id_too_long", "long field": "fields_too_long"}
    with pytest.raises(RecordError) as caught:
        _opened("wrong")(Document(text))
    assert caught.value.reason == expected.get(text, "function_failed")


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


def test_native_code_that_panics_is_a_dead_letter_as_well() -> None:
    """A step may call a tokenizer or a language model; its panic passes by every `except Exception` of ours."""
    with pytest.raises(RecordError, match=r"function_failed: .*panicked .*retry-limit-in-match"):
        _opened("tokenizing")(Document(HARMFUL))
    assert _opened("tokenizing")(Document("harmless")) == Document("8")
