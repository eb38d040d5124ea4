"""Which steps there are, and in which order."""

from dataclasses import replace
from functools import reduce

import pytest

from tests.app.milling.steps import user_functions
from tests.mills import RECIPE
from tokenmill.app.milling.steps import Rejected, open_steps
from tokenmill.documents import Document
from tokenmill.errors import SettingsError

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
    shouted = f"{user_functions.__name__}:shouted"
    steps = open_steps(replace(DRAFT, min_chars=3, function=shouted, normalize="NFKC"))
    assert [step.name for step in steps] == ["normalize", "function", "not_empty", "min_chars"]
    assert _through("\ufb01ne", min_chars=4, function=shouted, normalize="NFKC") == Document("FINE")
    assert _through("\ufb01n", min_chars=4, function=shouted, normalize="NFKC") == Rejected("min_chars")


def test_the_list_of_steps_stands_between_the_function_and_the_filters_of_all() -> None:
    """In its order, and with its lists."""
    pipeline = ({"name": "fix_unicode"}, {"name": "length", "max_words": 2}, {"name": "words", "words": "sha256:ab"})
    shouted = f"{user_functions.__name__}:shouted"
    recipe = replace(DRAFT, normalize="NFC", min_chars=1, function=shouted, pipeline=pipeline)
    steps = open_steps(recipe, {"ab": b"bad\n"})
    names = ["normalize", "function", "fix_unicode", "length", "words", "not_empty", "min_chars"]
    assert [step.name for step in steps] == names
    assert _through("a &amp; b c", pipeline=pipeline[:2]) == Rejected("max_words")


def test_empty_text_is_empty_and_not_merely_short() -> None:
    """With a minimum length, too."""
    assert _through("", min_chars=10) == Rejected("empty")
    assert _through("short", min_chars=10) == Rejected("min_chars")


@pytest.mark.parametrize(("settings", "named"), [({"normalize": "nfc"}, "normalize"), ({"min_chars": -1}, "min_chars")])
def test_wrong_settings_are_named(settings: dict[str, object], named: str) -> None:
    """The message begins with the setting to change."""
    with pytest.raises(SettingsError, match=f"^{named} = "):
        _through("text", **settings)
